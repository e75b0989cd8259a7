// Processes of ranks: who can be watched from here, and who has ended.
#pragma once

namespace convoy {

/// A process as others know it; plain bytes, to be sent.
struct Process {
  char host[64];
  char numbers[96];  ///< names the set of process numbers that this one is of: containers have their own
  int pid;
};

Process this_process();
/// Whether the number of one means the same process to the other.
bool see_each_other(const Process& a, const Process& b);
/// Whether a process of this host has ended, reaped or not.
bool ended(int pid);

}  // namespace convoy
