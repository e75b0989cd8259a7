#include "io/dates.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <map>
#include <string_view>
#include <tuple>

#include "core/text.h"

namespace convoy {
namespace {

/// Seconds of a unit of time; nothing where it has no fixed length.
std::optional<double> seconds_of(std::string unit) {
  static const std::map<std::string_view, double> known = {{"second", 1},  {"sec", 1},     {"s", 1},     {"minute", 60},
                                                           {"min", 60},    {"hour", 3600}, {"hr", 3600}, {"h", 3600},
                                                           {"day", 86400}, {"d", 86400}};
  if (unit.size() > 1 && unit.ends_with('s')) unit.pop_back();
  const auto found = known.find(unit);
  return found == known.end() ? std::nullopt : std::optional(found->second);
}

struct Day {
  int64_t year, month, day;
};

/// The day so many days behind another one, where years and months have the same lengths every year.
Day add_days(Day from, int64_t days, int february, bool thirty) {
  const auto length = [&](int64_t month) -> int64_t {
    constexpr int lengths[] = {31, 0, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    return thirty ? 30 : month == 2 ? february : lengths[month - 1];
  };
  int64_t year_length = 0, count = from.day - 1 + days;
  for (int64_t month = 1; month <= 12; ++month) year_length += length(month);
  for (int64_t month = 1; month < from.month; ++month) count += length(month);
  const auto years = static_cast<int64_t>(std::floor(double(count) / double(year_length)));
  count -= years * year_length;
  Day day{from.year + years, 1, 0};
  while (count >= length(day.month)) count -= length(day.month++);
  day.day = count + 1;
  return day;
}

// The Julian calendar, whose years begin in March here, so that leap days come last: a day's number is that of
// std::chrono, 0 on 1970-01-01 of the Gregorian one.
constexpr int64_t julian_begin = -719470;  // 1 March of year 0
constexpr int64_t gregorian_begin = std::chrono::sys_days(std::chrono::year(1582) / 10 / 15).time_since_epoch().count();

int64_t floor_of(int64_t a, int64_t b) {
  return a >= 0 ? a / b : -((b - 1 - a) / b);
}

int64_t julian_number(Day d) {
  const int64_t year = d.month <= 2 ? d.year - 1 : d.year, month = d.month <= 2 ? d.month + 9 : d.month - 3;
  return julian_begin + 365 * year + floor_of(year, 4) + (153 * month + 2) / 5 + d.day - 1;
}

Day julian_day(int64_t number) {
  const int64_t behind = number - julian_begin, year = floor_of(4 * behind + 3, 1461);
  const int64_t of_year = behind - 365 * year - floor_of(year, 4), month = (5 * of_year + 2) / 153;
  const bool next = month >= 10;  // January and February
  return {next ? year + 1 : year, next ? month - 9 : month + 3, of_year - (153 * month + 2) / 5 + 1};
}

/// Julian up to 4 October 1582, whose next day is the Gregorian 15th (CF conventions 4.4.1).
Day add_mixed_days(Day from, int64_t days) {
  using namespace std::chrono;
  const bool julian = std::tie(from.year, from.month, from.day) < std::tuple(1582, 10, 15);
  const year_month_day first{year(static_cast<int>(from.year)), month(static_cast<unsigned>(from.month)),
                             day(static_cast<unsigned>(from.day))};
  const int64_t number = days + (julian ? julian_number(from) : sys_days(first).time_since_epoch().count());
  if (number < gregorian_begin) return julian_day(number);
  const year_month_day found{sys_days(std::chrono::days(number))};
  return {int(found.year()), unsigned(found.month()), unsigned(found.day())};
}

constexpr std::string_view calendars[] = {
    "standard", "gregorian", "proleptic_gregorian", "noleap", "365_day", "all_leap", "366_day", "360_day"};

/// Nothing where the Gregorian calendar has no such day to count from.
std::optional<Day> add_days(const std::string& calendar, Day from, int64_t days) {
  if (calendar == "360_day") return add_days(from, days, 30, true);
  if (calendar == "noleap" || calendar == "365_day") return add_days(from, days, 28, false);
  if (calendar == "all_leap" || calendar == "366_day") return add_days(from, days, 29, false);
  const bool mixed = calendar != "proleptic_gregorian";
  using namespace std::chrono;
  const year_month_day first{year(static_cast<int>(from.year)), month(static_cast<unsigned>(from.month)),
                             day(static_cast<unsigned>(from.day))};
  const bool leap_century = mixed && from.year < 1582 && from.month == 2 && from.day == 29 && from.year % 4 == 0;
  if (!first.ok() && !leap_century) return std::nullopt;
  if (mixed) return add_mixed_days(from, days);
  const year_month_day found{sys_days(first) + std::chrono::days(days)};
  return Day{int(found.year()), unsigned(found.month()), unsigned(found.day())};
}

}  // namespace

std::optional<std::string> day_since(const std::string& units, const std::string& calendar, double time,
                                     std::string* why) {
  const auto nothing = [&](const std::string& expected, const std::string& found) {
    if (why) *why = "expected " + expected + ", found " + found;
    return std::nullopt;
  };
  const std::string usual = "units like \"days since 2106-01-01\"", quoted = '"' + units + '"';
  const size_t since = units.find(" since ");
  if (since == std::string::npos) return nothing(usual, quoted);
  const auto unit = seconds_of(std::string(trim(std::string_view(units).substr(0, since))));
  if (!unit) return nothing("units of seconds, minutes, hours or days", quoted);
  int year = 0, month = 0, day = 0, hour = 0, minute = 0;
  double second = 0;
  const char* date = units.c_str() + since + 7;
  const int found = std::sscanf(date, "%d-%d-%d%*[ tT]%d:%d:%lf", &year, &month, &day, &hour, &minute, &second);
  const bool sane = found >= 3 && year >= 0 && year <= 9999 && month >= 1 && month <= 12 && day >= 1 && day <= 31;
  if (!sane) return nothing(usual, quoted);
  if (!calendar.empty() && std::find(std::begin(calendars), std::end(calendars), calendar) == std::end(calendars)) {
    std::string known;
    for (const std::string_view name : calendars) known.append(known.empty() ? "" : ", ").append(name);
    return nothing("a calendar of " + known, '"' + calendar + '"');
  }
  char text[64];
  std::snprintf(text, sizeof text, "%g ", time);
  constexpr double all = 86400.0 * 366 * 10000;  // beyond all years that are wanted
  const std::string years = "a day of the years 0 to 9999", far = text + quoted;
  if (!(std::abs(time * *unit) < all)) return nothing(years, far);
  // To the second: times in days are rounded fractions.
  const auto seconds = std::llround(time * *unit + 3600.0 * hour + 60.0 * minute + second);
  const auto days = static_cast<int64_t>(std::floor(double(seconds) / 86400));
  const auto there = add_days(calendar, {year, month, day}, days);
  if (!there) return nothing(usual, quoted);
  if (there->year < 0 || there->year > 9999) return nothing(years, far);
  std::snprintf(text, sizeof text, "%04d-%02d-%02d", int(there->year), int(there->month), int(there->day));
  return text;
}

}  // namespace convoy
