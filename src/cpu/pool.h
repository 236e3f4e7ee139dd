// SPDX-License-Identifier: Apache-2.0
// Owns the compute threads. One Pool serves an engine; it is handed down as part of the context, and nothing else in
// quern starts compute threads. Does not own what is computed or how work is cut.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>

namespace quern::cpu {

// A borrowed callable void(int64_t begin, int64_t end, int worker), valid during the call it is passed to.
class RangeFunction {
 public:
  template <class F, class = std::enable_if_t<!std::is_same_v<std::remove_cvref_t<F>, RangeFunction>>>
  RangeFunction(F&& f)  // NOLINT: implicit by intent
      : object_(const_cast<void*>(static_cast<const void*>(&f))),
        call_([](void* object, int64_t begin, int64_t end, int worker) {
          (*static_cast<std::remove_reference_t<F>*>(object))(begin, end, worker);
        }) {}
  void operator()(int64_t begin, int64_t end, int worker) const { call_(object_, begin, end, worker); }

 private:
  void* object_;
  void (*call_)(void*, int64_t, int64_t, int);
};

// Calls that may run at once: parallel_for from several threads is safe; one of them gets the workers, the others run
// their own work inline. A parallel_for inside a parallel_for runs inline.
class Pool {
 public:
  // In a child of fork() an inherited Pool has no workers: sections run on the calling thread, and destroying it frees
  // nothing.
  // `threads` >= 1 counts the calling thread, so threads - 1 workers are started; fewer where the system refuses more
  // threads, and never more than 1023. threads() is what there is.
  explicit Pool(int threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const;

  // Calls f(begin, end, worker) for disjoint ranges that cover [0, count), each at most `chunk` long (chunk >= 1), on
  // up to threads() threads, and returns when all are done. Ranges start at multiples of `chunk` and are handed out in
  // order by an atomic counter; which worker gets which range is not fixed, so results must not depend on it.
  // 0 <= worker < threads(), no two threads of one call have the same, and inline it is 0. f must not throw.
  void parallel_for(int64_t count, int64_t chunk, RangeFunction f);

  // Says what will be read from memory when the next section is done, a hint that decides no result: threads that wait
  // within a Pass ask for these bytes meanwhile, in this order, for their second-level caches. Replaces the hint
  // before; the bytes need not stay. To be called by a thread that opens sections.
  void read_ahead(std::span<const std::byte> bytes);

  // While a Pass lives the workers wait for the next section by spinning briefly before they sleep; outside of one they
  // sleep at once. An engine holds one for the length of a forward pass.
  class Pass {
   public:
    explicit Pass(Pool& pool);
    ~Pass();
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;

   private:
    Pool& pool_;
  };

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace quern::cpu
