#include "kernels/onednn/prepared.h"

#include <cstdio>

#include "core/round_up.h"

namespace convoy::onednn {
namespace {

/// Everything a descriptor says.
std::string text_of(const dnnl::memory::desc& desc) {
#if DNNL_VERSION_MAJOR >= 3
  // 3.0 made the descriptor opaque: bytes, dims and inner blocks are what its getters show.
  std::string shown = std::to_string(desc.get_size());
  for (const auto& list :
       {desc.get_dims(), desc.get_padded_dims(), desc.get_strides(), desc.get_inner_blks(), desc.get_inner_idxs()})
    for (auto v : list) shown += "," + std::to_string(v);
  return shown;
#else
  return {reinterpret_cast<const char*>(&desc.data), sizeof desc.data};
#endif
}

/// Bytes depend on both: a transposed convolution reads the same weight with its channels the other way round.
std::string form_of(const dnnl::memory::desc& plain, const dnnl::memory::desc& wanted) {
  char text[32];
  std::snprintf(text, sizeof text, "layout-%016llx",
                static_cast<unsigned long long>(hash_name(text_of(plain) + "|" + text_of(wanted))));
  return text;
}

}  // namespace

PreparedPrimitive::PreparedPrimitive(dnnl::primitive primitive, const dnnl::memory::desc& scratchpad,
                                     std::string detail)
    : primitive_(std::move(primitive)), scratchpad_(scratchpad, engine(), nullptr), detail_(std::move(detail)) {
  list_.emplace(DNNL_ARG_SCRATCHPAD, scratchpad_);
  scratchpad_offset_ = book(static_cast<int64_t>(scratchpad.get_size()));
}

int64_t PreparedPrimitive::book(int64_t bytes) {
  const int64_t at = workspace_;
  workspace_ += round_up(bytes, 64);
  return at;
}

PreparedPrimitive::Argument& PreparedPrimitive::add(int argument, int index, From from, const dnnl::memory::desc& plain,
                                                    const dnnl::memory::desc& wanted) {
  Argument& a = arguments_.emplace_back();
  a.index = index, a.from = from;
  a.plain = dnnl::memory(plain, engine(), nullptr);
  if (plain == wanted || from == From::packed) {
    list_.emplace(argument, a.plain);
    return a;
  }
  a.inner = dnnl::memory(wanted, engine(), nullptr);
  list_.emplace(argument, a.inner);
  a.reorder = from == From::output ? dnnl::reorder(a.inner, a.plain) : dnnl::reorder(a.plain, a.inner);
  a.offset = book(static_cast<int64_t>(wanted.get_size()));
  return a;
}

void PreparedPrimitive::add_input(int argument, int index, const dnnl::memory::desc& plain,
                                  const dnnl::memory::desc& wanted) {
  add(argument, index, From::input, plain, wanted);
}
void PreparedPrimitive::add_output(int argument, int index, const dnnl::memory::desc& plain,
                                   const dnnl::memory::desc& wanted) {
  add(argument, index, From::output, plain, wanted);
}

void PreparedPrimitive::add_weight(int argument, int index, const dnnl::memory::desc& plain,
                                   const dnnl::memory::desc& wanted) {
  if (plain == wanted) return add_input(argument, index, plain, wanted);
  add(argument, static_cast<int>(packs_.size()), From::packed, wanted, wanted);
  const auto reorder =
      std::make_shared<dnnl::reorder>(dnnl::memory(plain, engine(), nullptr), dnnl::memory(wanted, engine(), nullptr));
  packs_.push_back({index, form_of(plain, wanted), static_cast<int64_t>(wanted.get_size()),
                    [reorder, plain, wanted](const Tensor& weight, std::byte* packed) {
                      dnnl::memory from(plain, engine(), weight.bytes()), to(wanted, engine(), packed);
                      reorder->execute(stream(), from, to);
                    }});
}

void PreparedPrimitive::run(const KernelArgs& args) const {
  for (Argument& a : arguments_) {
    const auto index = static_cast<size_t>(a.index);
    a.plain.set_data_handle(a.from == From::packed  ? args.packed[index]
                            : a.from == From::input ? args.in[index].bytes()
                                                    : args.out[index].bytes());
    if (!a.inner) continue;
    a.inner.set_data_handle(args.workspace + a.offset);
    if (a.from == From::input) a.reorder.execute(stream(), a.plain, a.inner);
  }
  scratchpad_.set_data_handle(args.workspace + scratchpad_offset_);
  primitive_.execute(stream(), list_);
  for (Argument& a : arguments_)
    if (a.inner && a.from == From::output) a.reorder.execute(stream(), a.inner, a.plain);
}

}  // namespace convoy::onednn
