#include "io/dates.h"

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string_view>

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

std::optional<Day> add_days(const std::string& calendar, Day from, int64_t days) {
  if (calendar == "360_day") return add_days(from, days, 30, true);
  if (calendar == "noleap" || calendar == "365_day") return add_days(from, days, 28, false);
  if (calendar == "all_leap" || calendar == "366_day") return add_days(from, days, 29, false);
  if (!calendar.empty() && calendar != "standard" && calendar != "gregorian" && calendar != "proleptic_gregorian")
    return std::nullopt;
  using namespace std::chrono;
  const year_month_day first{year(static_cast<int>(from.year)), month(static_cast<unsigned>(from.month)),
                             day(static_cast<unsigned>(from.day))};
  if (!first.ok()) return std::nullopt;
  const year_month_day found{sys_days(first) + std::chrono::days(days)};
  return Day{int(found.year()), unsigned(found.month()), unsigned(found.day())};
}

}  // namespace

std::optional<std::string> day_since(const std::string& units, const std::string& calendar, double time) {
  const size_t since = units.find(" since ");
  if (since == std::string::npos) return std::nullopt;
  const auto unit = seconds_of(std::string(trim(std::string_view(units).substr(0, since))));
  int year = 0, month = 0, day = 0, hour = 0, minute = 0;
  double second = 0;
  const char* date = units.c_str() + since + 7;
  const int found = std::sscanf(date, "%d-%d-%d%*[ tT]%d:%d:%lf", &year, &month, &day, &hour, &minute, &second);
  constexpr double all = 86400.0 * 366 * 10000;  // beyond all years that are wanted
  const bool sane = found >= 3 && year >= 0 && year <= 9999 && month >= 1 && month <= 12 && day >= 1 && day <= 31;
  if (!unit || !sane || !(std::abs(time * *unit) < all)) return std::nullopt;
  // To the second: times in days are rounded fractions.
  const auto seconds = std::llround(time * *unit + 3600.0 * hour + 60.0 * minute + second);
  const auto days = static_cast<int64_t>(std::floor(double(seconds) / 86400));
  const auto there = add_days(calendar, {year, month, day}, days);
  if (!there || there->year < 0 || there->year > 9999) return std::nullopt;
  char text[32];
  std::snprintf(text, sizeof text, "%04d-%02d-%02d", int(there->year), int(there->month), int(there->day));
  return text;
}

}  // namespace convoy
