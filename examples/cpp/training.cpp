// Data-parallel gradient descent: each rank has its own samples of y = 3 a - 2 b + 1, all end with the same weights.
//
//     c++ -std=c++17 training.cpp -I include -L lib -lcorro -o training
//     corro run -np 4 ./training

#include <cmath>
#include <corro.hpp>
#include <cstdio>
#include <random>

int main() {
  corro::Job job;
  std::mt19937 random(static_cast<unsigned>(job.rank()));
  std::uniform_real_distribution<float> uniform(-1, 1);

  // All begin with the weights of rank 0.
  std::vector<float> weights = {uniform(random), uniform(random)}, bias = {uniform(random)};
  corro::broadcast("weights", weights).wait();
  corro::broadcast("bias", bias).wait();

  float loss = 0;
  for (int step = 0; step < 300; step++) {
    std::vector<float> slope(2), offset(1), losses(1);
    for (int sample = 0; sample < 32; sample++) {
      const float a = uniform(random), b = uniform(random);
      const float error = weights[0] * a + weights[1] * b + bias[0] - (3 * a - 2 * b + 1);
      slope[0] += 2 * error * a / 32;
      slope[1] += 2 * error * b / 32;
      offset[0] += 2 * error / 32;
      losses[0] += error * error / 32;
    }
    // Under way together; Corro runs as one what it can.
    auto one = corro::allreduce("slope", slope);
    auto two = corro::allreduce("offset", offset);
    auto three = corro::allreduce("loss", losses);
    one.wait();
    two.wait();
    three.wait();
    for (int i = 0; i < 2; i++) weights[static_cast<size_t>(i)] -= 0.5F * slope[static_cast<size_t>(i)];
    bias[0] -= 0.5F * offset[0];
    loss = losses[0];
  }

  // The same bits everywhere.
  const std::vector<float> all = corro::allgather("check", weights).result<float>();
  for (size_t i = 0; i < all.size(); i++) {
    if (all[i] != weights[i % 2]) return 2;
  }
  std::printf("rank %d of %d: y = %.3f a %+.3f b %+.3f, loss %.1e\n", job.rank(), job.size(),
              static_cast<double>(weights[0]), static_cast<double>(weights[1]), static_cast<double>(bias[0]),
              static_cast<double>(loss));
  const bool learned = std::fabs(weights[0] - 3) < 0.01 && std::fabs(weights[1] + 2) < 0.01 && std::fabs(bias[0] - 1) < 0.01;
  job.barrier();
  return learned ? 0 : 3;
}
