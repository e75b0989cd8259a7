#include "dist/schedule.h"

#include <algorithm>

#include "core/round_up.h"

namespace convoy {
namespace {

int power_of_two_below(int n) {
  int p = 1;
  while (2 * p <= n) p *= 2;
  return p;
}

/// Non-empty transfers only: an empty part is known to be empty on both sides.
void add(std::vector<Transfer>& list, int peer, Piece piece, int64_t scratch = Transfer::in_place) {
  if (piece.count > 0) list.push_back({peer, piece, scratch});
}

/// The parts of `count` ranks from `first` on, behind the last of which comes the first one's.
void add_parts(std::vector<Transfer>& list, int peer, std::span<const Piece> parts, int first, int count) {
  const auto stretch = [&](int begin, int end) {
    const Piece from = parts[static_cast<size_t>(begin)], last = parts[static_cast<size_t>(end - 1)];
    add(list, peer, {from.begin, last.begin + last.count - from.begin});
  };
  const int ranks = static_cast<int>(parts.size()), over = first + count - ranks;
  stretch(first, std::min(first + count, ranks));
  if (over > 0) stretch(0, over);
}

void add_sum(Round& round, Piece piece, std::vector<int64_t> sources) {
  if (piece.count > 0) round.sums.push_back({piece, std::move(sources)});
}

void finish(Round& round, Piece piece) {
  if (piece.count > 0) round.finished.push_back(piece);
}

/// Ranks above the largest power of two q fold their vector into the rank q below; the others run `core` among
/// themselves, then hand the result back.
template <class Core>
Schedule folded(const Members& m, Core core) {
  Schedule s;
  const int q = power_of_two_below(m.size()), me = m.self;
  s.scratch = m.range.count;
  if (me >= q) {
    Round give, take;
    add(give.sends, m.ranks[static_cast<size_t>(me - q)], m.range);
    add(take.receives, m.ranks[static_cast<size_t>(me - q)], m.range);
    s.rounds = {give, take};
    return s;
  }
  const bool has_guest = me + q < m.size();
  if (has_guest) {
    Round take;
    add(take.receives, m.ranks[static_cast<size_t>(me + q)], m.range, 0);
    add_sum(take, m.range, {Sum::own, 0});
    s.rounds.push_back(take);
  }
  core(s, q);
  if (has_guest) {
    Round give;
    add(give.sends, m.ranks[static_cast<size_t>(me + q)], m.range);
    s.rounds.push_back(give);
  }
  return s;
}

}  // namespace

Piece part_of(Piece range, int index, int parts) {
  // Parts are cut at cache lines of f32.
  const int64_t lines = ceil_div(range.count, 16), each = ceil_div(lines, parts) * 16;
  const int64_t begin = std::min(range.count, each * index), end = std::min(range.count, each * (index + 1));
  return {range.begin + begin, end - begin};
}

Schedule ring_schedule(const Members& m) {
  const int p = m.size(), me = m.self;
  const int next = m.ranks[static_cast<size_t>((me + 1) % p)],
            previous = m.ranks[static_cast<size_t>((me + p - 1) % p)];
  const auto part = [&](int i) { return part_of(m.range, ((i % p) + p) % p, p); };
  Schedule s;
  s.scratch = part_of(m.range, 0, p).count;
  for (int r = 0; r + 1 < p; ++r) {
    Round round;
    add(round.sends, next, part(me - r));
    add(round.receives, previous, part(me - r - 1), 0);
    add_sum(round, part(me - r - 1), {Sum::own, 0});
    if (r + 2 == p) finish(round, part(me + 1));
    s.rounds.push_back(std::move(round));
  }
  for (int r = 0; r + 1 < p; ++r) {
    Round round;
    add(round.sends, next, part(me + 1 - r));
    add(round.receives, previous, part(me - r));
    s.rounds.push_back(std::move(round));
  }
  return s;
}

Schedule halving_schedule(const Members& m) {
  return folded(m, [&](Schedule& s, int q) {
    const int me = m.self;
    Piece mine = m.range;
    std::vector<std::pair<int, Piece>> path;  // partner, and what this rank had before the split
    for (int distance = q / 2; distance >= 1; distance /= 2) {
      const int partner = me ^ distance;
      const bool low = (me & distance) == 0;
      const Piece keep = part_of(mine, low ? 0 : 1, 2), give = part_of(mine, low ? 1 : 0, 2);
      Round round;
      add(round.sends, m.ranks[static_cast<size_t>(partner)], give);
      add(round.receives, m.ranks[static_cast<size_t>(partner)], keep, 0);
      add_sum(round, keep, {Sum::own, 0});
      path.emplace_back(partner, mine);
      mine = keep;
      if (distance == 1) finish(round, mine);
      s.rounds.push_back(std::move(round));
    }
    for (size_t i = path.size(); i-- > 0;) {
      const auto& [partner, whole] = path[i];
      const bool low = me < partner;
      Round round;
      add(round.sends, m.ranks[static_cast<size_t>(partner)], part_of(whole, low ? 0 : 1, 2));
      add(round.receives, m.ranks[static_cast<size_t>(partner)], part_of(whole, low ? 1 : 0, 2));
      s.rounds.push_back(std::move(round));
    }
  });
}

Schedule doubling_schedule(const Members& m) {
  return folded(m, [&](Schedule& s, int q) {
    for (int distance = 1; distance < q; distance *= 2) {
      const int partner = m.self ^ distance;
      Round round;
      add(round.sends, m.ranks[static_cast<size_t>(partner)], m.range);
      add(round.receives, m.ranks[static_cast<size_t>(partner)], m.range, 0);
      // Lower half first, so that both sides add in the same order.
      add_sum(round, m.range, m.self < partner ? std::vector<int64_t>{Sum::own, 0} : std::vector<int64_t>{0, Sum::own});
      if (2 * distance == q) finish(round, m.range);
      s.rounds.push_back(std::move(round));
    }
  });
}

Schedule gather_schedule(const Members& m, std::span<const Piece> parts, int peers) {
  const int p = m.size(), me = m.self;
  Schedule s;
  if (p - 1 <= peers) {
    Round round;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (i == static_cast<size_t>(me)) continue;
      add(round.sends, m.ranks[i], parts[static_cast<size_t>(me)]);
      add(round.receives, m.ranks[i], parts[i]);
    }
    s.rounds.push_back(std::move(round));
    return s;
  }
  // A rank that has the parts of `have` ranks from itself on hands them to the one as far below.
  for (int have = 1; have < p; have *= 2) {
    Round round;
    const int count = std::min(have, p - have), from = (me + have) % p, to = (me + p - have) % p;
    add_parts(round.sends, m.ranks[static_cast<size_t>(to)], parts, me, count);
    add_parts(round.receives, m.ranks[static_cast<size_t>(from)], parts, from, count);
    s.rounds.push_back(std::move(round));
  }
  return s;
}

Schedule direct_schedule(const Members& m, int peers) {
  const int p = m.size(), me = m.self;
  std::vector<Piece> parts;
  for (int i = 0; i < p; ++i) parts.push_back(part_of(m.range, i, p));
  const Piece mine = parts[static_cast<size_t>(me)];
  Schedule s;
  s.scratch = (p - 1) * mine.count;
  const auto scratch_of = [&](int i) { return (i < me ? i : i - 1) * mine.count; };
  int distance = 1;
  do {
    Round round;
    for (const int end = std::min(p, distance + peers); distance < end; ++distance) {
      const int to = (me + distance) % p, from = (me + p - distance) % p;
      add(round.sends, m.ranks[static_cast<size_t>(to)], parts[static_cast<size_t>(to)]);
      add(round.receives, m.ranks[static_cast<size_t>(from)], mine, scratch_of(from));
    }
    s.rounds.push_back(std::move(round));
  } while (distance < p);
  std::vector<int64_t> sources;
  for (int i = 0; i < p; ++i) sources.push_back(i == me ? Sum::own : scratch_of(i));
  add_sum(s.rounds.back(), mine, sources);
  finish(s.rounds.back(), mine);
  for (Round& round : gather_schedule(m, parts, peers).rounds) s.rounds.push_back(std::move(round));
  return s;
}

Schedule broadcast_schedule(const Members& m, int root) {
  const int p = m.size(), position = (m.self - root + p) % p;
  const auto rank = [&](int at) { return m.ranks[static_cast<size_t>((at + root) % p)]; };
  Schedule s;
  int distance = 1;
  while (distance < p) distance *= 2;
  bool has = position == 0;
  for (distance /= 2; distance >= 1; distance /= 2) {
    Round round;
    if (has && position + distance < p) {
      add(round.sends, rank(position + distance), m.range);
    } else if (!has && position % distance == 0 && position % (2 * distance) != 0) {
      add(round.receives, rank(position - distance), m.range);
      has = true;
    }
    s.rounds.push_back(std::move(round));
  }
  return s;
}

}  // namespace convoy
