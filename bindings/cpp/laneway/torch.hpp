// Samples as torch tensors, for extensions in C++, on torch's stable ABI (torch 2.11 or later): an extension that is compiled once serves later versions
// of torch as well. Compile with -DTORCH_TARGET_VERSION=0x020b000000000000; examples/cpp/torch_extension is a whole one.
//
// A tensor views the sample's slot: nothing is copied. It holds a reference of its own, so that the Sample, and even the Student, may go before it, and gives the
// slot back when torch frees its storage, on whatever thread that is. It must not be written: other readers may see the same bytes.
#ifndef LANEWAY_TORCH_HPP
#define LANEWAY_TORCH_HPP

#include <laneway.hpp>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

namespace laneway {

// torch's name of a dtype.
inline torch::headeronly::ScalarType scalar_type(std::int32_t dtype) {
  using torch::headeronly::ScalarType;
  switch (dtype) {
    case LW_FLOAT64: return ScalarType::Double;
    case LW_FLOAT32: return ScalarType::Float;
    case LW_FLOAT16: return ScalarType::Half;
    case LW_BFLOAT16: return ScalarType::BFloat16;
    case LW_INT64: return ScalarType::Long;
    case LW_INT32: return ScalarType::Int;
    case LW_INT16: return ScalarType::Short;
    case LW_INT8: return ScalarType::Char;
    case LW_UINT8: return ScalarType::Byte;
    case LW_BOOL: return ScalarType::Bool;
  }
  throw Error(LW_INVALID_ARGUMENT, "dtype " + std::to_string(dtype) + " is not one of lw_dtype");
}

// Tensor `index` of a sample, as a view that holds the sample for as long as it lives.
inline torch::stable::Tensor torch_tensor(const Sample& sample, std::size_t index) {
  const Tensor view = sample.tensor(index);
  const auto type = scalar_type(view.dtype);
  const std::vector<std::int64_t> sizes(view.sizes().begin(), view.sizes().end());
  std::vector<std::int64_t> strides(sizes.size(), 1);
  for (std::size_t d = sizes.size(); d-- > 1;) strides[d - 1] = strides[d] * (sizes[d] > 0 ? sizes[d] : 1);
  using torch::headeronly::DeviceType;
  const bool cuda = view.device_type == LW_DEVICE_CUDA;
  const torch::stable::Device device(cuda ? DeviceType::CUDA : DeviceType::CPU, cuda ? static_cast<torch::stable::DeviceIndex>(view.device_id) : -1);
  return torch::stable::from_blob(view.data, sizes, strides, device, type,
                                  [held = sample.share()](void*) {});
}

// All tensors of a sample, in the layout's order.
inline std::vector<torch::stable::Tensor> torch_tensors(const Sample& sample) {
  std::vector<torch::stable::Tensor> tensors;
  for (std::size_t i = 0; i < sample.layout().size(); ++i) tensors.push_back(torch_tensor(sample, i));
  return tensors;
}

}  // namespace laneway

#endif  // LANEWAY_TORCH_HPP
