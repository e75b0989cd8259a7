// Cores that a process may run on.
#pragma once

#include <sched.h>

#include <string>
#include <vector>

namespace convoy::apps {

/// Cores that this process may run on, of machines with any number; empty where the system does not tell. Tests pass
/// another `ask`.
std::vector<int> allowed_cores(int (*ask)(pid_t, size_t, cpu_set_t*) = sched_getaffinity);

/// The NUMA domain that all these cores belong to, -1: several, or no cores are given. 0 where the system does not
/// tell.
int numa_domain(const std::vector<int>& cores);

/// "0-3,8": of ascending numbers.
std::string core_text(const std::vector<int>& cores);

}  // namespace convoy::apps
