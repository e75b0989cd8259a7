// Whole files in and out, and files that appear under their name only when they are complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace convoy {

/// Throws Error(data) naming the file when it cannot be read.
std::vector<std::byte> read_file(const std::string& path);

/// Why the system keeps a file's bytes from HDF5, which does not tell that from damage: "cannot open: ..." or "cannot
/// read: ..."; empty where it does not. HDF5 locks what it opens, unless the variable HDF5_USE_FILE_LOCKING forbids it
/// or the file system has no locks. Reads the whole file.
std::string why_withheld(const std::string& path);

/// Links that lead nowhere: an error, or listed for a caller that counts what cannot be read.
enum class BrokenLinks : uint8_t { refused, listed };
/// Reads from byte `offset` of an open file on until `out` is full or the file ends; returns how many bytes. Throws
/// Error(data) that begins with `what`.
size_t read_at(int descriptor, int64_t offset, std::span<std::byte> out, const std::string& what);

/// Regular files at any depth below a folder whose extension (".h5") is one of `extensions`, in name order. Throws
/// Error(data) where the folder is missing or one in it of a NewDataSet that is not complete, or a link leads back to a
/// folder that it lies in.
std::vector<std::string> files_below(const std::string& folder, const std::vector<std::string>& extensions,
                                     BrokenLinks broken = BrokenLinks::refused);

/// The name of what files_below found below a folder: links stay names, wherever they lead.
std::string name_below(const std::string& folder, const std::string& path);

/// The folder above one, by its name: of "sky/train", "sky/train/" and, in sky, "train" it is sky.
std::string folder_above(const std::string& folder);

/// The folder of a file as seen from `path`, the data set that it belongs to, or "." where that is the file: outputs
/// keep train/ and validation/ apart, so that equal names do not overwrite each other.
std::string folder_inside(const std::string& path, const std::string& file);

/// Where the samples of a data set lie.
struct SampleFolders {
  std::string train;       ///< its folder train, or all of it where it has no such folders
  std::string validation;  ///< its folder validation; empty: a share of `train` validates
};
/// Of a data set with a folder train nothing is read beside that and its folder validation. Throws Error(data) where
/// there is no train beside validation or test: samples of those would be trained on.
SampleFolders sample_folders(const std::string& folder);

/// Of universes or days about a share, the first in the order of their keys: at least one, and not all unless there is
/// only one.
std::set<std::string> held_out(double share, const std::set<std::string>& names,
                               const std::function<uint64_t(const std::string&)>& key);

/// Makes a folder and those above it; says whether it was missing. Throws Error(runtime).
bool make_folders(const std::string& folder);

/// Folders of samples in the making. Until complete() each holds a file by which readers know what a program left that
/// failed or was killed; files that are written there meanwhile are synced to disk by complete().
class NewDataSet {
 public:
  /// Makes the folders. Throws Error(usage) where one of them holds anything or one of `files`, which are to be written
  /// beside them, is there: of another data set, perhaps; Error(runtime) where one cannot be made. Leaves all as it was
  /// then.
  explicit NewDataSet(const std::set<std::string>& folders, const std::vector<std::string>& files = {});
  /// Without complete(): folders that nothing was written into lose their mark and, if this made them, go.
  ~NewDataSet();
  NewDataSet(const NewDataSet&) = delete;
  NewDataSet& operator=(const NewDataSet&) = delete;
  /// Throws Error(runtime) naming the file that does not reach the disk; the folders stay marked then.
  void complete();

 private:
  NewDataSet() = default;
  std::map<std::string, bool> made_;  ///< folders, and whether this made them
};

/// Throws Error(usage) where a folder holds anything: it would be taken for part of the data set that is written there.
void refuse_used_folder(const std::string& folder);

/// Throws Error(usage) where an output, which `flag` names, is the data set `data` that is read, or lies inside of it:
/// it would become part of that.
void refuse_inside(const std::string& data, const std::string& output, const std::string& flag = "--out");
/// The same for what is read of a data set: the folder, or, where it has train, that and its validation and test.
void refuse_among_samples(const std::string& data, const std::string& output, const std::string& flag);

/// Files that are being read, which no output may replace. For one thread at a time.
class InputFiles {
 public:
  explicit InputFiles(const std::vector<std::string>& paths);
  /// Throws Error(usage) where the output, which `flag` names, is one of them, by whatever path.
  void refuse(const std::string& output, const std::string& flag = "--out") const;

 private:
  std::set<std::string> paths_;
  mutable std::set<std::string> canonical_;  ///< of paths_, once an output is there: each is a look at the file system
};

/// Throws Error(runtime) naming the flag where write_atomically could not write the file at the end of a run.
void expect_writable(const std::string& path, const std::string& flag);

/// Throws Error(runtime) where `path` is there and no regular file: a folder, a device or a pipe cannot be replaced.
void expect_replaceable(const std::string& path);

/// A digest of the names (without their folders) of these files, in order, and of the sizes of a thousand of them.
std::string files_digest(const std::vector<std::string>& paths);

/// Calls write(temporary name), syncs that file to disk, then renames it to `path`: a crash or a full disk never leaves
/// a partial file under the final name (but in a NewDataSet, which is synced and known to be whole as one). On failure
/// the temporary file is removed and Error(runtime) names the file. A link stays, and the file that it leads to is
/// replaced.
void write_atomically(const std::string& path, const std::function<void(const std::string&)>& write);
void write_file(const std::string& path, std::span<const std::byte> data);
void write_text(const std::string& path, const std::string& text);

}  // namespace convoy
