// Writes the tokens that the exported language model finds the most likely after others.
//
//   write IDS [COUNT]
//
// IDS are the tokens before, such as 504,3575,282. COUNT is how many are written at most, 64 by default.
#include <chrono>
#include <cstdio>
#include <sstream>

#include "language.h"

static std::vector<int32_t> Parse(const std::string& list) {
  std::vector<int32_t> ids;
  std::istringstream words(list);
  for (std::string word; std::getline(words, word, ',');) {
    size_t used = 0;
    try {
      ids.push_back(std::stoi(word, &used));
    } catch (const std::logic_error&) {  // no number, or one that is too large
    }
    if (used != word.size() || word.empty()) throw std::invalid_argument("'" + word + "' is no token; give 1,2,3");
  }
  return ids;
}

static double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static void Write(const std::string& folder, std::vector<int32_t> ids, int count) {
  autotune::LanguageModel model(std::filesystem::path(folder) / model::kLibrary);
  autotune::State state(model);
  const size_t read = ids.size();
  const double began = Seconds();
  double first = 0, last = 0;
  int written = 0;
  while (written < count) {
    const int32_t token = autotune::most_likely(state.step(ids));
    last = Seconds();
    if (written == 0) first = last;
    if (autotune::ends_text(token)) break;
    std::printf("%d ", token);
    std::fflush(stdout);
    ++written;
    ids = {token};
  }
  std::printf("\n");
  std::fprintf(stderr, "%zu tokens read, the first one written after %.0f ms", read, (first - began) * 1e3);
  if (written > 1) std::fprintf(stderr, ", then %.1f tokens a second", (written - 1) / (last - first));
  std::fprintf(stderr, "\n");
}

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::fprintf(stderr, "write IDS [COUNT], such as: write 504,3575,282 64\n");
    return 2;
  }
  try {
    const int count = argc > 2 ? std::max(1, std::atoi(argv[2])) : 64;
    Write(std::filesystem::read_symlink("/proc/self/exe").parent_path(), Parse(argv[1]), count);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  return 0;
}
