// What a kernel throws, though it promises not to, with the node's name.
#pragma once

#include <exception>
#include <new>
#include <string>

#include "core/error.h"
#include "core/plan.h"

namespace convoy {

inline constexpr const char* no_exception = "threw what is no std::exception";

/// To be called while an exception is handled, which it throws again: an Error, whose kind says what to do, and want of
/// memory as they are, others as Error(runtime) with the node and its kernel in front.
[[noreturn]] inline void rethrow_of(const PlannedNode& node) {
  try {
    throw;
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    fail_runtime(node.name + ", run by " + node.kernel + ": " + error.what());
  } catch (...) {
    fail_runtime(node.name + ", run by " + node.kernel + ": " + no_exception);
  }
}

}  // namespace convoy
