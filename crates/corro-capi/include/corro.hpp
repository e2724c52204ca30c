// Corro for C++17: the functions of corro.h with exceptions, types, and nothing to forget.
//
//     corro::Job job;                                        // corro_init; corro_shutdown at the end
//     std::vector<float> gradient = ...;
//     auto ticket = corro::allreduce("gradient", gradient);  // in place; the vector must stay where it is
//     ...
//     ticket.wait();                                         // throws corro::Error
//
// Anything it does not wrap can be called beside it.

#ifndef CORRO_HPP
#define CORRO_HPP

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "corro.h"

namespace corro {

/// What a call that did not end well throws.
class Error : public std::runtime_error {
 public:
  explicit Error(std::int32_t status) : std::runtime_error(corro_last_error()), status_(status) {}

  /// A `corro_status`.
  std::int32_t status() const noexcept { return status_; }

 private:
  std::int32_t status_;
};

inline void check(std::int32_t status) {
  if (status != CORRO_STATUS_OK) throw Error(status);
}

/// The `corro_dtype` of a C++ type.
template <typename T> struct dtype_of;
template <> struct dtype_of<std::uint8_t> { static constexpr std::int32_t value = CORRO_DTYPE_UINT8; };
template <> struct dtype_of<std::int8_t> { static constexpr std::int32_t value = CORRO_DTYPE_INT8; };
template <> struct dtype_of<std::uint16_t> { static constexpr std::int32_t value = CORRO_DTYPE_UINT16; };
template <> struct dtype_of<std::int16_t> { static constexpr std::int32_t value = CORRO_DTYPE_INT16; };
template <> struct dtype_of<std::uint32_t> { static constexpr std::int32_t value = CORRO_DTYPE_UINT32; };
template <> struct dtype_of<std::int32_t> { static constexpr std::int32_t value = CORRO_DTYPE_INT32; };
template <> struct dtype_of<std::uint64_t> { static constexpr std::int32_t value = CORRO_DTYPE_UINT64; };
template <> struct dtype_of<std::int64_t> { static constexpr std::int32_t value = CORRO_DTYPE_INT64; };
template <> struct dtype_of<float> { static constexpr std::int32_t value = CORRO_DTYPE_FLOAT32; };
template <> struct dtype_of<double> { static constexpr std::int32_t value = CORRO_DTYPE_FLOAT64; };

/// The process's part in a job.
class Job {
 public:
  Job() { check(corro_init()); }
  ~Job() { corro_shutdown(); }
  Job(const Job &) = delete;
  Job &operator=(const Job &) = delete;

  int rank() const { return number(corro_rank); }
  int size() const { return number(corro_size); }
  int local_rank() const { return number(corro_local_rank); }
  int local_size() const { return number(corro_local_size); }
  void barrier(std::uint32_t process_set = 0) const { check(corro_barrier(process_set)); }

 private:
  static int number(std::int32_t (*ask)(int *)) {
    int number = 0;
    check(ask(&number));
    return number;
  }
};

/// An operation under way. Dropped before it is done, it is waited for: its memory must not go before.
class Ticket {
 public:
  explicit Ticket(corro_ticket ticket) noexcept : ticket_(ticket) {}
  Ticket(Ticket &&other) noexcept : ticket_(std::exchange(other.ticket_, 0)) {}
  Ticket &operator=(Ticket &&other) noexcept {
    std::swap(ticket_, other.ticket_);
    return *this;
  }
  ~Ticket() {
    if (ticket_ != 0) corro_finish(ticket_);
  }

  bool done() const { return corro_poll(ticket_) != CORRO_STATUS_PENDING; }

  void wait() const { check(corro_wait(ticket_)); }

  /// Waits, and copies the result.
  template <typename T> std::vector<T> result() const {
    wait();
    const void *data = nullptr;
    std::size_t bytes = 0;
    check(corro_result(ticket_, &data, &bytes));
    std::vector<T> values(bytes / sizeof(T));
    check(corro_result_copy(ticket_, values.data(), bytes));
    return values;
  }

 private:
  corro_ticket ticket_;
};

/// A vector as a tensor, with the result in its place or elsewhere.
template <typename T>
corro_tensor tensor(const char *name, const std::vector<T> &data, const std::size_t &length, T *output = nullptr) {
  corro_tensor tensor{};
  tensor.name = name;
  tensor.dtype = dtype_of<T>::value;
  tensor.dimensions = 1;
  tensor.shape = &length;
  tensor.input = data.data();
  tensor.output = output;
  tensor.output_bytes = output == nullptr ? 0 : data.size() * sizeof(T);
  return tensor;
}

/// Reduces a vector over all ranks, in place.
template <typename T>
Ticket allreduce(const std::string &name, std::vector<T> &data, corro_op op = CORRO_OP_AVERAGE) {
  const std::size_t length = data.size();
  const corro_tensor it = tensor(name.c_str(), data, length, data.data());
  corro_ticket ticket = 0;
  check(corro_allreduce(&it, op, 1.0, 1.0, &ticket));
  return Ticket(ticket);
}

/// Gives the vector of `root` to all, in place.
template <typename T> Ticket broadcast(const std::string &name, std::vector<T> &data, int root = 0) {
  const std::size_t length = data.size();
  const corro_tensor it = tensor(name.c_str(), data, length, data.data());
  corro_ticket ticket = 0;
  check(corro_broadcast(&it, root, &ticket));
  return Ticket(ticket);
}

/// Puts the vectors of all ranks together; `Ticket::result` gives them.
template <typename T> Ticket allgather(const std::string &name, const std::vector<T> &data) {
  const std::size_t length = data.size();
  const corro_tensor it = tensor(name.c_str(), data, length);
  corro_ticket ticket = 0;
  check(corro_allgather(&it, &ticket));
  return Ticket(ticket);
}

}  // namespace corro

#endif  // CORRO_HPP
