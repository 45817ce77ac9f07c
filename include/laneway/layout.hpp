// The part of laneway.hpp that needs no exchange: errors, deadlines, tensors, layouts. Include laneway.hpp.
#ifndef LANEWAY_LAYOUT_HPP
#define LANEWAY_LAYOUT_HPP

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "../laneway.h"

namespace laneway {

// What went wrong, for people (what()) and for code (status()).
class Error : public std::runtime_error {
 public:
  Error(lw_status status, const std::string& message) : std::runtime_error(message), status_(status) {}
  lw_status status() const noexcept { return status_; }

 private:
  lw_status status_;
};

inline void check(lw_status status) {
  if (status != LW_OK) throw Error(status, lw_last_error());
}

// Throws unless the library that was loaded is of this header's kind. Every constructor below that loads something calls it.
inline void check_abi() {
  if (lw_abi_version() == LW_ABI_VERSION) return;
  throw Error(LW_ABI_MISMATCH, "laneway: compiled for ABI " + std::to_string(LW_ABI_VERSION) + ", but liblaneway.so " + lw_version() +
                                   " has ABI " + std::to_string(lw_abi_version()));
}

// A deadline: nanoseconds of CLOCK_MONOTONIC.
using Deadline = std::int64_t;
inline constexpr Deadline never = LW_NEVER;
inline Deadline in(std::chrono::nanoseconds time) noexcept {
  const Deadline now = lw_now();
  return time.count() >= never - now ? never : now + time.count();
}

// The dtype of a C++ type.
template <class T> struct dtype_of;
template <> struct dtype_of<double> { static constexpr lw_dtype value = LW_FLOAT64; };
template <> struct dtype_of<float> { static constexpr lw_dtype value = LW_FLOAT32; };
template <> struct dtype_of<std::int64_t> { static constexpr lw_dtype value = LW_INT64; };
template <> struct dtype_of<std::int32_t> { static constexpr lw_dtype value = LW_INT32; };
template <> struct dtype_of<std::int16_t> { static constexpr lw_dtype value = LW_INT16; };
template <> struct dtype_of<std::int8_t> { static constexpr lw_dtype value = LW_INT8; };
template <> struct dtype_of<std::uint8_t> { static constexpr lw_dtype value = LW_UINT8; };
template <> struct dtype_of<bool> { static constexpr lw_dtype value = LW_BOOL; };

// Elements in a row in memory, not owned.
template <class T> struct Span {
  T* first;
  std::size_t count;
  T* begin() const noexcept { return first; }
  T* end() const noexcept { return first + count; }
  std::size_t size() const noexcept { return count; }
  T& operator[](std::size_t i) const noexcept { return first[i]; }
};

// A view of a tensor; as long-lived as what it is a view of.
struct Tensor : lw_tensor {
  std::string_view title() const noexcept { return name; }
  Span<const std::int64_t> sizes() const noexcept { return {shape, static_cast<std::size_t>(ndim)}; }
  // Its elements, if T is the type of its dtype; Span<const T> for what must not be written.
  template <class T> Span<T> as() const {
    using Plain = std::remove_const_t<T>;
    if (dtype != dtype_of<Plain>::value)
      throw Error(LW_INVALID_ARGUMENT, "tensor '" + std::string(name) + "' has dtype " + std::to_string(dtype) + ", not " +
                                           std::to_string(dtype_of<Plain>::value));
    return {static_cast<T*>(data), static_cast<std::size_t>(nbytes / sizeof(T))};
  }
};

namespace detail {
// Text from the functions that fill a buffer and say how much room they need.
template <class Get> std::string text(Get get) {
  std::string buffer;
  std::size_t length = 0;
  check(get(nullptr, 0, &length));
  for (;;) {  // It may have grown in between.
    buffer.resize(length + 1);
    const lw_status status = get(buffer.data(), buffer.size(), &length);
    if (status != LW_OK && length >= buffer.size()) continue;
    check(status);
    buffer.resize(length);
    return buffer;
  }
}
template <class T, void (*Free)(T*)> struct Freed {
  void operator()(T* handle) const noexcept { Free(handle); }
};
// Text as JSON has it.
inline std::string quoted(std::string_view text) {
  static const char digits[] = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20) {
      out += "\\u00";
      out += digits[byte >> 4];
      out += digits[byte & 15];
      continue;
    }
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}
inline std::string dtype_name(lw_dtype dtype) {
  static const char* const names[] = {"float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"};
  const int number = dtype;
  return number >= 1 && number <= 10 ? names[number - 1] : std::to_string(number);
}
struct Nothing {
  template <class Options> void operator()(Options&) const noexcept {}
};
}  // namespace detail

// One dimension: a size, or "seq<=2048", a name and a maximum, for one that each sample has its own length of.
struct Dim {
  template <class Int, class = std::enable_if_t<std::is_integral_v<Int> || std::is_enum_v<Int>>> Dim(Int n) : size(static_cast<std::int64_t>(n)) {}
  Dim(const char* name_and_maximum) : ragged(name_and_maximum) {}
  Dim(std::string name_and_maximum) : ragged(std::move(name_and_maximum)) {}
  std::int64_t size = 0;
  std::string ragged;
};

// One tensor of a layout. `finite`, `min` and `max` are what is asked of the values that workers write.
struct Spec {
  Spec(std::string name, std::vector<Dim> shape, lw_dtype dtype) : name(std::move(name)), shape(std::move(shape)), dtype(dtype) {}
  // Every value is finite (float types).
  Spec& require_finite() {
    finite = true;
    return *this;
  }
  // Every value lies between the two, or is one of them (integer types): for token ids 0 and the vocabulary less one.
  Spec& require_range(std::int64_t least, std::int64_t greatest) {
    min = least, max = greatest;
    return *this;
  }
  std::string name;
  std::vector<Dim> shape;
  lw_dtype dtype;
  bool finite = false;
  std::optional<std::int64_t> min, max;
};

// A layout that somebody else owns.
class LayoutRef {
 public:
  explicit LayoutRef(const lw_layout* handle) noexcept : handle_(handle) {}
  const lw_layout* get() const noexcept { return handle_; }
  std::size_t nbytes() const noexcept { return lw_layout_nbytes(handle_); }
  std::size_t size() const noexcept { return lw_layout_count(handle_); }
  Tensor operator[](std::size_t index) const {
    Tensor tensor;
    check(lw_layout_tensor(handle_, index, &tensor, nullptr));
    return tensor;
  }
  std::size_t offset(std::size_t index) const {
    lw_tensor tensor;
    std::uint64_t offset = 0;
    check(lw_layout_tensor(handle_, index, &tensor, &offset));
    return offset;
  }
  std::size_t find(const std::string& name) const {
    std::size_t index = 0;
    check(lw_layout_find(handle_, name.c_str(), &index));
    return index;
  }
  std::string to_json() const {
    return detail::text([&](char* buffer, std::size_t room, std::size_t* length) { return lw_layout_to_json(handle_, buffer, room, length); });
  }
  // Tensors (with names, or in the layout's order) copied into a sample of nbytes() bytes at `out`.
  void encode(const std::vector<lw_tensor>& tensors, void* out, std::size_t capacity) const {
    check(lw_layout_encode(handle_, tensors.data(), tensors.size(), out, capacity));
  }
  // Views of the sample at `data`.
  std::vector<Tensor> decode(const void* data, std::size_t length) const {
    std::vector<lw_tensor> plain(size());
    check(lw_layout_decode(handle_, data, length, plain.data(), plain.size()));
    std::vector<Tensor> tensors;
    for (const lw_tensor& tensor : plain) tensors.push_back(Tensor{tensor});
    return tensors;
  }

 private:
  const lw_layout* handle_;
};

// The tensors of one sample.
class Layout : public LayoutRef {
 public:
  Layout(std::initializer_list<Spec> specs) : Layout(std::vector<Spec>(specs)) {}
  explicit Layout(const std::vector<Spec>& specs) : Layout(make(specs)) {}
  static Layout from_json(std::string_view text) {
    check_abi();
    lw_layout* handle = nullptr;
    check(lw_layout_from_json(text.data(), text.size(), &handle));
    return Layout(handle);
  }

 private:
  explicit Layout(lw_layout* handle) : LayoutRef(handle), owner_(handle) {}
  static std::string text_of(const std::vector<Spec>& specs) {
    std::string text;
    for (const Spec& spec : specs) {
      text += (text.empty() ? "" : ", ") + ("{\"name\": " + detail::quoted(spec.name)) + ", \"dtype\": " + detail::quoted(detail::dtype_name(spec.dtype));
      text += ", \"shape\": [";
      for (std::size_t i = 0; i < spec.shape.size(); ++i) {
        const std::int64_t size = spec.shape[i].size;
        if (size < 0) throw Error(LW_INVALID_ARGUMENT, "tensor '" + spec.name + "': dimension " + std::to_string(size) + " is negative");
        text += (i ? ", " : "") + (spec.shape[i].ragged.empty() ? std::to_string(size) : detail::quoted(spec.shape[i].ragged));
      }
      text += "]";
      if (spec.finite) text += ", \"finite\": true";
      if (spec.min) text += ", \"min\": " + std::to_string(*spec.min);
      if (spec.max) text += ", \"max\": " + std::to_string(*spec.max);
      text += "}";
    }
    return "{\"specs\": [" + text + "]}";
  }
  static lw_layout* make(const std::vector<Spec>& specs) {
    check_abi();
    lw_layout* handle = nullptr;
    const std::string text = text_of(specs);
    check(lw_layout_from_json(text.data(), text.size(), &handle));
    return handle;
  }
  std::unique_ptr<lw_layout, detail::Freed<lw_layout, lw_layout_free>> owner_;
};

}  // namespace laneway

#endif  // LANEWAY_LAYOUT_HPP
