// --onnx of a predicting program: the network that it runs, for programs of others.
#pragma once

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "apps/common/options.h"
#include "apps/common/version.h"
#include "io/file.h"
#include "io/onnx.h"
#include "models/program.h"

namespace convoy::apps {

inline Option onnx_option() {
  return {"onnx", "", "", "also write the network with these weights to this file, as an ONNX model"};
}

/// Throws Error(usage) where --onnx names a file that is read or that --out names, Error(runtime) where it cannot be
/// written.
inline void expect_onnx_writable(const OptionTable& o, const InputFiles& inputs) {
  const std::string& path = o.text("onnx");
  if (path.empty()) return;
  inputs.refuse(path, "--onnx");
  const auto place = [](const std::string& name) {
    std::error_code unknown;
    return std::filesystem::weakly_canonical(std::filesystem::absolute(name, unknown), unknown);
  };
  if (place(path) == place(o.text("out"))) fail_usage("--onnx: expected another file than --out, found " + path);
  expect_writable(path, "--onnx");
}

/// Writes it, if it is asked for. The arithmetic of the run (--compute) does not show in the model.
template <class Options>
void write_network(const OptionTable& o, Options options, Program& program, const std::vector<OnnxOutput>& outputs,
                   const OnnxNormalisation& normalisation, const std::string& input) {
  if (o.text("onnx").empty()) return;
  options.fuse = false, options.compute = DType::f32;
  program.to_host();
  write_onnx(o.text("onnx"), evaluation_tape(options), program.store(), outputs, normalisation,
             {o.text("model"), version_text(), input});
}

}  // namespace convoy::apps
