// Shapes, and inputs whose open dimensions are smaller than those of an entry: they are padded with zeros at their ends.
#pragma once
#include <algorithm>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "model.h"

namespace autotune {
using Shape = std::vector<int64_t>;
using Sizes = std::map<std::string, int64_t>;  // of open dimensions, by name

inline std::string text(const Shape& shape) {
  std::string words = shape.empty() ? "scalar" : std::to_string(shape[0]);
  for (size_t axis = 1; axis < shape.size(); ++axis) words += "x" + std::to_string(shape[axis]);
  return words;
}

inline bool fits(const Shape& shape, const model::TensorInfo& info) {
  if (shape.size() != info.shape.size()) return false;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    const bool is_open = axis < info.dims.size() && !info.dims[axis].empty();
    const bool is_less = shape[axis] > 0 && shape[axis] < info.shape[axis];
    if (shape[axis] != info.shape[axis] && !(is_open && is_less)) return false;
  }
  return true;
}

// The number of the first input that an entry does not take; how many there are if it takes all.
template <typename Inputs>
size_t first_unfit(const Inputs& inputs, const model::Entry& entry) {
  size_t number = 0;
  while (number < inputs.size() && fits(inputs[number].shape, entry.inputs[number])) ++number;
  return number;
}

inline bool is_smaller(const model::Entry& entry, const model::Entry& other) {
  const auto elements = [](const model::Entry& entry) {
    int64_t sum = 0;
    for (const model::TensorInfo& info : entry.inputs) {
      int64_t count = 1;
      for (int64_t size : info.shape) count *= size;
      sum += count;
    }
    return sum;
  };
  return elements(entry) < elements(other);
}

// The smallest entry that takes some inputs, padded or as they are; null if none does.
template <typename Inputs>
const model::Entry* smallest_entry(const Inputs& inputs) {
  const model::Entry* smallest = nullptr;
  for (const model::Entry& entry : model::kEntries) {
    const bool takes = first_unfit(inputs, entry) == inputs.size();
    if (takes && (smallest == nullptr || is_smaller(entry, *smallest))) smallest = &entry;
  }
  return smallest;
}

// The sizes of the open dimensions, on which all inputs have to agree.
template <typename Inputs>
Sizes sizes_of(const Inputs& inputs) {
  Sizes sizes;
  for (size_t i = 0; i < std::min(inputs.size(), model::kInputs.size()); ++i) {
    const std::vector<std::string>& dims = model::kInputs[i].dims;
    for (size_t axis = 0; axis < std::min(dims.size(), inputs[i].shape.size()); ++axis) {
      const int64_t size = inputs[i].shape[axis];
      if (dims[axis].empty() || sizes.emplace(dims[axis], size).first->second == size) continue;
      throw std::invalid_argument("the inputs disagree on " + dims[axis] + ": " + std::to_string(sizes[dims[axis]]) +
                                  " and " + std::to_string(size));
    }
  }
  return sizes;
}

inline Shape cut(const model::TensorInfo& info, const Sizes& sizes) {
  Shape shape = info.shape;
  for (size_t axis = 0; axis < info.dims.size(); ++axis) {
    if (sizes.count(info.dims[axis]) > 0) shape[axis] = sizes.at(info.dims[axis]);
  }
  return shape;
}

// Copies what two arrays have in common, whose dimensions begin at the same elements of so many bytes.
inline void copy_common(void* to, const Shape& to_shape, const void* from, const Shape& from_shape, size_t bytes) {
  if (to_shape.empty()) return void(std::memcpy(to, from, bytes));
  const Shape to_row(to_shape.begin() + 1, to_shape.end()), from_row(from_shape.begin() + 1, from_shape.end());
  size_t to_step = bytes, from_step = bytes;
  for (int64_t size : to_row) to_step *= size;
  for (int64_t size : from_row) from_step *= size;
  const int64_t rows = std::min(to_shape[0], from_shape[0]);
  if (to_row == from_row) return void(std::memcpy(to, from, rows * to_step));
  for (int64_t i = 0; i < rows; ++i) {
    copy_common(static_cast<char*>(to) + i * to_step, to_row, static_cast<const char*>(from) + i * from_step, from_row,
                bytes);
  }
}

}  // namespace autotune
