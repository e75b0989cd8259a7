// All-reduce algorithms as data: what one rank sends, receives and adds, round by round. A schedule knows nothing of
// messages, so every algorithm is tested at any number of ranks inside one process.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace convoy {

/// A range of elements.
struct Piece {
  int64_t begin = 0, count = 0;
};

/// Elements of the vector that go to a peer, or come from it: into the vector itself, or into scratch at an element.
struct Transfer {
  int peer = 0;
  Piece piece;
  int64_t scratch = in_place;
  static constexpr int64_t in_place = -1;
};

/// vector[piece] = the sum of the sources in this order; a source is an element of scratch or the vector itself.
struct Sum {
  Piece piece;
  std::vector<int64_t> sources;
  static constexpr int64_t own = -1;
};

/// All transfers of a round may travel at the same time; sums follow when they have arrived.
struct Round {
  std::vector<Transfer> sends, receives;
  std::vector<Sum> sums;
  std::vector<Piece> finished;  ///< complete sums of which this rank takes the mean before anybody else sees them
};

struct Schedule {
  std::vector<Round> rounds;
  int64_t scratch = 0;  ///< elements of scratch
};

/// The ranks that take part, and which of them this one is. `range` is the part of the vector that they reduce.
struct Members {
  std::vector<int> ranks;
  int self = 0;
  Piece range;
  int size() const { return static_cast<int>(ranks.size()); }
};

/// So many ranks a rank exchanges messages with in one round.
inline constexpr int most_peers = 64;

/// Part `index` of a range cut into equal parts; the last ones are shorter.
Piece part_of(Piece range, int index, int parts);

/// 2(p-1) rounds, 2(p-1)/p of the data per rank: least bytes, one neighbour on each side.
Schedule ring_schedule(const Members& m);
/// Rabenseifner 2004: halves exchanged over log2 p distances, then the same way back; least bytes, 2 log2 p rounds.
/// Ranks above the largest power of two first hand their vector to a partner.
Schedule halving_schedule(const Members& m);
/// The whole vector exchanged log2 p times: fewest rounds, for short vectors.
Schedule doubling_schedule(const Members& m);
/// Every rank gets its part from all others and adds in rank order, then all get all parts: 2 rounds, p-1 messages
/// each; more where there are more than `peers` others. The sums do not depend on how gradients are cut into buckets.
Schedule direct_schedule(const Members& m, int peers = most_peers);

/// Everybody's part to everybody; parts lie one behind the other. One round, or, where there are more than `peers`
/// others, Bruck et al. 1997: log2 p rounds, in which what a rank has travels on.
Schedule gather_schedule(const Members& m, std::span<const Piece> parts, int peers = most_peers);
/// Binomial tree from `root`, an index into ranks.
Schedule broadcast_schedule(const Members& m, int root);

}  // namespace convoy
