#!/usr/bin/env python3
"""Does every source include the headers that it uses?   usage: included_headers.py SOURCE_DIR

The release build precompiles most standard headers and compiles several sources as one, which hides a missing #include
from everybody but those who build without (CONVOY_PRECOMPILE_HEADERS=OFF and CMAKE_UNITY_BUILD=OFF, the defaults). A
header counts when the file, or what it includes of the project, has it. Of the project's own headers, those are looked
for whose types a source names, types that one header alone declares.
"""
import pathlib
import re
import sys

ALGORITHMS = ("adjacent_find all_of any_of binary_search count count_if find find_if for_each generate includes "
              "is_sorted max_element min_element minmax minmax_element none_of nth_element partial_sort partition "
              "remove_if replace reverse rotate set_difference set_union sort stable_sort transform unique upper_bound")
MATHEMATICS = ("acos asin atan atan2 cbrt ceil copysign cos cosh erf exp exp2 expm1 fabs floor fmod frexp hypot isfinite "
               "isinf isnan ldexp lgamma llround log log10 log1p log2 lround nearbyint nextafter pow rint round signbit "
               "sin sinh sqrt tan tanh tgamma trunc")
NUMERICS = "accumulate exclusive_scan gcd inclusive_scan inner_product iota lcm partial_sum reduce"


def names(words, tail=r"\b"):
    return r"\bstd::(?:" + "|".join(words.split()) + ")" + tail


# What a header alone declares; names that many headers bring along (std::min, std::pair) are left out.
USES = {
    "algorithm": names(ALGORITHMS, r"\("),
    "array": r"\bstd::array\b",
    "atomic": r"\bstd::atomic",
    "chrono": r"\bstd::chrono\b",
    "cmath": names(MATHEMATICS, r"\(") + r"|\b(?:INFINITY|NAN|M_PI)\b",
    "cstring": names("memchr memcmp memcpy memmove memset strchr strcmp strerror strlen strncmp strrchr strstr", r"\("),
    "filesystem": r"\bstd::filesystem\b",
    "fstream": r"\bstd::[io]?fstream\b",
    "functional": names("function greater hash plus multiplies"),
    "map": r"\bstd::(?:multi)?map\b",
    "memory": names("make_shared make_unique shared_ptr unique_ptr weak_ptr"),
    "mutex": names("call_once lock_guard mutex once_flag scoped_lock unique_lock"),
    "numeric": names(NUMERICS, r"\("),
    "optional": names("nullopt optional"),
    "set": r"\bstd::(?:multi)?set\b",
    "span": r"\bstd::(?:as_bytes|as_writable_bytes|span)\b",
    "sstream": r"\bstd::[io]?stringstream\b",
    "string": r"\bstd::(?:string|to_string|getline)\b",
    "thread": r"\bstd::(?:this_thread|thread)\b",
    "vector": r"\bstd::vector\b",
    "nlohmann/json.hpp": r"\bnlohmann::json\b",
    "fmt/format.h": r"\bfmt::\w",
}
# Others that have the same.
ALSO = {"cmath": {"cstdlib"}, "functional": {"map", "set", "string"}, "nlohmann/json.hpp": {"nlohmann/json_fwd.hpp"},
        "fmt/format.h": {"fmt/core.h", "fmt/ranges.h"}, "string": {"sstream", "filesystem"}}
TYPE_NAME = r"[A-Z]\w*[a-z]\w*"
# What owns a type says what it is; any mention behind one of these words is enough to know it.
OWNED = re.compile(r"^[ \t]*(?:template *<[^;{]*> *)?(?:(?:struct|class|enum class|enum|union) (?:(?:alignas|__align__)\([^)]*\) )?(" + TYPE_NAME +
                   r")\b(?! *;)|(?:using|concept) (" + TYPE_NAME + r") =)", re.MULTILINE)
KNOWN = re.compile(r"\b(?:struct|class|enum|union|using|concept|typename)(?: *\.\.\.)? (?:(?:alignas|__align__)\([^)]*\) )?(" + TYPE_NAME + r")\b")
NAMED = re.compile(r"(?<![:.])\b(?:convoy::)?(" + TYPE_NAME + r")\b")
FOLDERS = "core kernels layers models dist io apps tests bench".split()
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
NO_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)


class Sources:
    def __init__(self, root):
        self.root, self.read = root, {}

    def file(self, path):
        """Text without comments and strings, standard headers, project files that it includes."""
        if path not in self.read:
            text = path.read_text()
            found = INCLUDE.findall(text)
            own = [self.root / name for kind, name in found if kind == '"' and (self.root / name).is_file()]
            own += [path.parent / name for kind, name in found
                    if kind == '"' and not (self.root / name).is_file() and (path.parent / name).is_file()]
            self.read[path] = NO_CODE.sub(" ", text), {name for kind, name in found if kind == "<"}, own
        return self.read[path]

    def closure(self, path):
        """The file and all of the project that it includes, however deep."""
        seen, left = set(), [path]
        while left:
            at = left.pop()
            if at not in seen:
                seen.add(at)
                left += self.file(at)[2]
        return seen


def owners(sources, root):
    """Types that one header of the project alone has, and that header."""
    found = {}
    for folder in FOLDERS:
        for path in (root / folder).rglob("*.h"):
            for match in OWNED.findall(sources.file(path)[0]):
                found.setdefault("".join(match), set()).add(path)
    return {name: paths.pop() for name, paths in found.items() if len(paths) == 1}


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    sources, failed, checked, named = Sources(root), False, 0, 0
    owner_of = owners(sources, root)
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in (".cpp", ".h", ".cu"):  # .inl are parts of those
                continue
            files = sources.closure(path)
            parts = [path] + [f for f in files if f.suffix == ".inl"]
            headers = set().union(*(sources.file(f)[1] for f in files))
            for header, use in USES.items():
                checked += 1
                if headers & ({header} | ALSO.get(header, set())):
                    continue
                for part in parts:
                    if used := re.search(use, sources.file(part)[0]):
                        print(f"{path.relative_to(root)}: {used.group()} needs #include <{header}>")
                        failed = True
                        break
            known = {name for f in files for name in KNOWN.findall(sources.file(f)[0])}
            used = owner_of.keys() & {name for part in parts for name in NAMED.findall(sources.file(part)[0])}
            named += len(used)
            for name in sorted(used - known):
                print(f"{path.relative_to(root)}: {name} needs #include \"{owner_of[name].relative_to(root)}\"")
                failed = True
    if checked < 1000 or named < 1000:
        print(f"only {checked} uses of standard headers and {named} of types looked for")
        failed = True
    if not failed:
        print(f"{checked} uses of standard headers and {named} of {len(owner_of)} own types looked for, all included")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
