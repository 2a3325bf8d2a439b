// Lets the exported language model write tokens in a program of your own, with TVM's runtime alone.
//
//   autotune::LanguageModel model("lib/model.so");
//   autotune::State state(model);
//   std::vector<float> logits = state.step({504, 3575, 282});  // of the token that follows
//   int32_t token = autotune::most_likely(logits);
//
// A state has memory of its own; states share the weights. Tokens that do not exist, or for which the context has no
// room, throw std::invalid_argument, and the state is as it was.
#pragma once
#include <algorithm>

#include "autotune.h"

namespace autotune {

constexpr size_t kCache = 3;  // where keys and values begin among the inputs: tokens and two numbers are before them

class LanguageModel {
 public:
  explicit LanguageModel(const std::string& library, int threads = 0) : net_(library, threads) {
    for (const model::Entry& entry : model::kEntries) entries_[entry.inputs[0].shape[0]] = &entry;
  }

  static int64_t vocabulary() { return model::kInputs[0].rows; }
  static int64_t context() { return model::kInputs.back().shape[2]; }

 private:
  friend class State;

  // The function that reads the next tokens. One for more tokens than are left is used from a quarter of its size on.
  const model::Entry& entry_for(int64_t left, int64_t room) const {
    const model::Entry* chosen = entries_.begin()->second;
    for (const auto& [size, entry] : entries_) {
      if (size <= room && 4 * left >= size) chosen = entry;
    }
    return *chosen;
  }

  Model net_;
  std::map<int64_t, const model::Entry*> entries_;  // by how many tokens they read
  std::mutex turn_;
};

class State {
 public:
  explicit State(LanguageModel& model) : model_(model) {
    for (size_t i = kCache; i < model::kInputs.size(); ++i) {
      cache_.push_back(Model::allocated(model::kInputs[i]));
      std::memset(cache_.back().data_ptr(), 0, tvm::ffi::GetDataSize(cache_.back()));
    }
  }

  int64_t length() const { return length_; }

  // Reads tokens, and returns the logits of the one that follows them.
  std::vector<float> step(const std::vector<int32_t>& ids) {
    check(ids);
    const int64_t count = ids.size();
    std::vector<float> logits;
    std::lock_guard<std::mutex> turn(model_.turn_);
    for (int64_t start = 0; start < count;) {
      const int64_t past = length_ + start, left = count - start;
      const model::Entry& entry = model_.entry_for(left, LanguageModel::context() - past);
      const int64_t read = std::min(entry.inputs[0].shape[0], left);
      logits = part(entry, ids.data() + start, read, past);
      start += read;
    }
    length_ += count;
    return logits;
  }

 private:
  std::vector<float> part(const model::Entry& entry, const int32_t* ids, int64_t count, int64_t past) {
    std::vector<tvm::ffi::Tensor> arguments;
    for (size_t i = 0; i < kCache; ++i) arguments.push_back(Model::allocated(entry.inputs[i]));
    std::vector<int32_t> rows(entry.inputs[0].shape[0]);
    std::copy(ids, ids + count, rows.begin());
    std::memcpy(arguments[0].data_ptr(), rows.data(), rows.size() * sizeof(int32_t));
    *static_cast<int32_t*>(arguments[1].data_ptr()) = static_cast<int32_t>(past);
    *static_cast<int32_t*>(arguments[2].data_ptr()) = static_cast<int32_t>(count - 1);  // the row that counts
    arguments.insert(arguments.end(), cache_.begin(), cache_.end());
    return Model::outputs(entry, model_.net_.call(entry.name, arguments))[0].values<float>();
  }

  void check(const std::vector<int32_t>& ids) const {
    const int64_t words = LanguageModel::vocabulary(), context = LanguageModel::context();
    if (ids.empty()) throw std::invalid_argument("there are no tokens to read; give one at least");
    for (int32_t token : ids) {
      if (token >= 0 && token < words) continue;
      throw std::invalid_argument("there is no token " + std::to_string(token) + "; the model has " +
                                  std::to_string(words) + ", counted from 0");
    }
    if (length_ + static_cast<int64_t>(ids.size()) <= context) return;
    throw std::invalid_argument("the context is full: it has room for " + std::to_string(context) + " tokens, " +
                                std::to_string(length_) + " are kept, and " + std::to_string(ids.size()) +
                                " more were given; begin anew, or submit the model with a larger --context");
  }

  LanguageModel& model_;
  std::vector<tvm::ffi::Tensor> cache_;
  int64_t length_ = 0;
};

inline int32_t most_likely(const std::vector<float>& logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

inline bool ends_text(int32_t token) {
  return std::find(model::kEnd.begin(), model::kEnd.end(), token) != model::kEnd.end();
}

}  // namespace autotune
