// Who may write into a folder of staged files: its readers keep writers out.
#pragma once

#include <string>

namespace convoy::apps {

/// An advisory lock (flock) on `.convoy-stage.lock` in a folder of one node, which the kernel takes back at the end of
/// the process. On file systems that have no such locks it does nothing.
class StageLock {
 public:
  /// Makes the folder and reads in it. Throws Error(usage) while another process writes there, Error(runtime) where the
  /// folder or the file cannot be made.
  explicit StageLock(const std::string& folder);
  ~StageLock();
  StageLock(const StageLock&) = delete;
  StageLock& operator=(const StageLock&) = delete;

  /// Throws Error(usage) while others read from the folder.
  void write();
  /// Ends write().
  void read();

 private:
  void lock(int kind, const char* trouble);
  std::string folder_;
  int file_ = -1;
};

}  // namespace convoy::apps
