// What ranks that share memory hold once and divide among themselves.
#pragma once

#include "core/kernel.h"
#include "core/placement.h"

namespace convoy {

/// Narrows the problem of an update that is divided by element to this member's share, and tells which one that is;
/// leaves others, and those of small parameters, as they are. Bits stay.
Part part_of_update(Problem& problem, int team, int place);
/// What part_of_update makes of the problem of an update of which this is a member's part.
void take_part(Problem& problem, const Part& part);

/// Moves what packs weights of a training plan to the front, where every member packs some of them. Weights change at
/// the end of a plan only.
void share_packs(Plan& plan, int team);

/// Gives each update that is not divided by element to one member, and the states that divided updates change places in
/// memory that all see. Whatever reads states goes ahead of the first of these updates.
void share_updates(Plan& plan, int team);

/// Buckets get places in this rank's window. `home`: where each value lies.
void share_buckets_of_team(Plan& plan, const ByValue<Home>& home, int team, int place);

}  // namespace convoy
