// The node loader: one process makes the batches of all ranks of a node. docs/node_loader.md explains it.
#ifndef LANEWAY_NODE_HPP
#define LANEWAY_NODE_HPP

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lanes.hpp"

namespace laneway {

namespace detail {
struct NothingOfTwo {
  template <class One, class Other> void operator()(One&, Other&) const noexcept {}
};
}  // namespace detail

// A server in this process, until it is destroyed.
class Server {
 public:
  // `set` changes the options, and those of the pipelines, after their defaults are set.
  template <class Set = detail::NothingOfTwo> explicit Server(const RecipeRef& recipe, Set set = {}) : Server(recipe, std::vector<Function>{}, set) {}
  // With the functions that the recipe names, in any order.
  template <class Set = detail::NothingOfTwo>
  Server(const RecipeRef& recipe, std::vector<Function> functions, Set set = {}) : Server(recipe, std::move(functions), std::vector<Operator>{}, set) {}
  // And the operators, whose names stand behind theirs. All are called by threads of this process, and freed with the server.
  template <class Set = detail::NothingOfTwo> Server(const RecipeRef& recipe, std::vector<Function> functions, std::vector<Operator> operators, Set set = {}) {
    check_abi();
    detail::Given given(std::move(functions), std::move(operators));
    lw_server_options options;
    lw_loader_options pipeline;
    lw_server_options_init(&options), lw_loader_options_init(&pipeline);
    options.loader = &pipeline;
    given.put(pipeline);
    set(options, pipeline);
    lw_server* handle = nullptr;
    check(lw_server_start(recipe.get(), &options, &handle));
    handle_.reset(handle);
    given.release();
  }
  // Whether it has ended by then.
  bool wait(Deadline deadline) const {
    const lw_status status = lw_server_wait(get(), deadline);
    if (status == LW_TIMEOUT) return false;
    check(status);
    return true;
  }
  std::string stats() const {
    return detail::text([&](char* buffer, std::size_t room, std::size_t* length) { return lw_server_stats(get(), buffer, room, length); });
  }
  void stop() const noexcept { lw_server_stop(get()); }
  const lw_server* get() const noexcept { return handle_.get(); }

 private:
  std::unique_ptr<lw_server, detail::Freed<lw_server, lw_server_free>> handle_;
};

namespace detail {
template <class Set> Loader connect(const lw_recipe* recipe, Set set) {
  check_abi();
  lw_connect_options options;
  lw_connect_options_init(&options);
  set(options);
  lw_loader* handle = nullptr;
  check(lw_loader_connect(recipe, &options, &handle));
  return Loader(handle);
}
}  // namespace detail

// A loader whose batches a server makes. `set` changes the options after their defaults are set.
template <class Set> Loader connect(Set set) { return detail::connect(nullptr, set); }
// The same; the server's recipe must be this one.
template <class Set> Loader connect(const RecipeRef& recipe, Set set) { return detail::connect(recipe.get(), set); }

}  // namespace laneway

#endif
