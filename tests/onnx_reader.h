// Just enough of ONNX' protobuf to read the operator vectors of Debian's libonnx-testdata: one-node graphs, attributes,
// tensors of f32 and of 64-bit integers.
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace convoy::testing {

struct OnnxTensor {
  std::string name;
  std::vector<int64_t> dims;
  int64_t type = 0;         ///< 1 = f32, 7 = i64
  std::vector<float> data;  ///< integers too: labels and extents are small
};

struct OnnxNode {
  std::string op;
  std::vector<std::string> inputs, outputs;
  std::map<std::string, std::vector<int64_t>> ints;
  std::map<std::string, float> floats;
  std::map<std::string, std::string> strings;
};

struct OnnxModel {
  std::vector<OnnxNode> nodes;
  std::vector<OnnxTensor> initializers;
  std::vector<std::string> inputs;
};

namespace onnx {

inline std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Calls f(number, varint, bytes) for every field; bytes is empty for varints, varint 0 for bytes and fixed fields.
template <class F>
void fields(const std::string& message, F&& f) {
  size_t at = 0;
  const auto varint = [&] {
    uint64_t value = 0;
    for (int shift = 0; at < message.size(); shift += 7) {
      const auto byte = static_cast<uint8_t>(message[at++]);
      value |= uint64_t(byte & 0x7f) << shift;
      if (!(byte & 0x80)) break;
    }
    return value;
  };
  while (at < message.size()) {
    const uint64_t tag = varint();
    uint64_t size = 0;
    switch (tag & 7) {
      case 0:
        f(tag >> 3, varint(), std::string());
        continue;
      case 1:
        size = 8;
        break;
      case 2:
        size = varint();
        break;
      default:
        size = 4;
    }
    f(tag >> 3, uint64_t{0}, message.substr(at, size));
    at += size;
  }
}

/// Repeated numbers come packed or one by one.
inline void append_ints(std::vector<int64_t>& list, uint64_t value, const std::string& packed) {
  if (packed.empty()) return list.push_back(static_cast<int64_t>(value));
  uint64_t number = 0;
  int shift = 0;
  for (char ch : packed) {
    number |= uint64_t(static_cast<uint8_t>(ch) & 0x7f) << shift;
    shift += 7;
    if (!(ch & 0x80)) list.push_back(static_cast<int64_t>(number)), number = 0, shift = 0;
  }
}

inline OnnxTensor tensor(const std::string& message) {
  OnnxTensor t;
  fields(message, [&](uint64_t number, uint64_t value, const std::string& bytes) {
    if (number == 1) append_ints(t.dims, value, bytes);
    if (number == 2) t.type = static_cast<int64_t>(value);
    if (number == 8) t.name = bytes;
    if (number == 7) {
      std::vector<int64_t> whole;
      append_ints(whole, value, bytes);
      t.data.insert(t.data.end(), whole.begin(), whole.end());
    } else if (number == 9 && t.type == 7) {
      for (size_t at = 0; at + 8 <= bytes.size(); at += 8) {
        int64_t whole = 0;
        std::memcpy(&whole, bytes.data() + at, 8);
        t.data.push_back(static_cast<float>(whole));
      }
    } else if (number == 4 || number == 9) {
      const size_t first = t.data.size();
      t.data.resize(first + bytes.size() / 4);
      std::memcpy(t.data.data() + first, bytes.data(), bytes.size() / 4 * 4);
    }
  });
  return t;
}

inline OnnxNode node(const std::string& message) {
  OnnxNode n;
  fields(message, [&](uint64_t number, uint64_t, const std::string& bytes) {
    if (number == 1) n.inputs.push_back(bytes);
    if (number == 2) n.outputs.push_back(bytes);
    if (number == 4) n.op = bytes;
    if (number != 5) return;
    std::string name, text;
    std::vector<int64_t> ints;
    float real = 0;
    fields(bytes, [&](uint64_t field, uint64_t value, const std::string& content) {
      if (field == 1) name = content;
      if (field == 2) std::memcpy(&real, content.data(), 4);
      if (field == 3) ints.push_back(static_cast<int64_t>(value));
      if (field == 4) text = content;
      if (field == 8) append_ints(ints, value, content);
    });
    n.ints[name] = ints, n.floats[name] = real, n.strings[name] = text;
  });
  return n;
}

inline OnnxModel model(const std::string& path) {
  OnnxModel m;
  fields(read(path), [&](uint64_t number, uint64_t, const std::string& graph) {
    if (number != 7) return;
    fields(graph, [&](uint64_t field, uint64_t, const std::string& bytes) {
      if (field == 1) m.nodes.push_back(node(bytes));
      if (field == 5) m.initializers.push_back(tensor(bytes));
      if (field == 11)
        fields(bytes, [&](uint64_t f, uint64_t, const std::string& name) {
          if (f == 1) m.inputs.push_back(name);
        });
    });
  });
  return m;
}

}  // namespace onnx
}  // namespace convoy::testing
