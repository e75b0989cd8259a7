// Days of times as climate files give them.
#pragma once

#include <optional>
#include <string>

namespace convoy {

/// The day, "2106-03-04", that a time in CF units ("hours since 2106-01-01 06:00") falls on, in the zone of the units.
/// Calendars are standard (or empty), gregorian, proleptic_gregorian, noleap, 365_day, all_leap, 366_day and 360_day;
/// of the first three, days before 15 October 1582 are Julian but for proleptic_gregorian's (CF conventions 4.4.1).
/// Nothing for other calendars, for other units (months and years are of no fixed length), and for days outside of the
/// years 0 to 9999: `why`, where given, then says what was expected and found.
std::optional<std::string> day_since(const std::string& units, const std::string& calendar, double time,
                                     std::string* why = nullptr);

}  // namespace convoy
