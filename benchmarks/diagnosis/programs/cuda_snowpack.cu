// Snow on a grid of cells, hour by hour: snowfall, melt, water held and refrozen, albedo; written with Thrust.
// CAUSE: fusion
// ALSO:
#include <thrust/device_vector.h>
#include <thrust/for_each.h>
#include <thrust/functional.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/transform.h>

#include "_run_other.cuh"

const int CELLS = 6000 * 4000, HOURS = 4;
using Field = thrust::device_vector<float>;

struct Snowfall {
  __host__ __device__ float operator()(float temperature, float precipitation) const {
    float solid = fminf(fmaxf((2.f - temperature) * 0.5f, 0.f), 1.f);
    return solid * precipitation;
  }
};

struct MeltRate {
  __host__ __device__ float operator()(float temperature, float albedo) const {
    return fmaxf(temperature, 0.f) * (0.1f + 0.2f * (1.f - albedo));
  }
};

struct Refreezing {
  __host__ __device__ float operator()(float temperature, float water) const {
    return fminf(fmaxf(-temperature, 0.f) * 0.05f, water);
  }
};

struct Held {
  __host__ __device__ float operator()(float water, float snow) const { return fminf(water, 0.1f * snow); }
};

struct Aged {
  __host__ __device__ float operator()(float albedo, float fallen) const {
    float old = 0.5f + (albedo - 0.5f) * 0.996f;
    return fallen > 0.1f ? 0.85f : old;
  }
};

// All of an hour, for one cell.
struct Hour {
  const float *temperature, *precipitation;
  float *snow, *water, *albedo;
  __host__ __device__ void operator()(int cell) const {
    float degrees = temperature[cell], fallen = Snowfall()(degrees, precipitation[cell]);
    float bright = albedo[cell], mass = snow[cell] + fallen, wet = water[cell];
    float melt = fminf(MeltRate()(degrees, bright), mass);
    mass -= melt, wet += melt;
    float frozen = Refreezing()(degrees, wet);
    mass += frozen, wet -= frozen;
    snow[cell] = mass;
    water[cell] = Held()(wet, mass);
    albedo[cell] = Aged()(bright, fallen);
  }
};

struct Snowpack {
  Field temperature, precipitation, snow, water, albedo, fallen, melt, frozen;

  Snowpack()
      : temperature(CELLS, -1.f), precipitation(CELLS, 0.3f), snow(CELLS, 20.f), water(CELLS, 0.5f),
        albedo(CELLS, 0.7f), fallen(CELLS), melt(CELLS), frozen(CELLS) {
    thrust::fill(temperature.begin(), temperature.begin() + CELLS / 2, 3.f);
  }

  template <class Operation>
  void each(const Field &left, const Field &right, Field &result, Operation operation) {
    auto policy = thrust::cuda::par_nosync;
    thrust::transform(policy, left.begin(), left.end(), right.begin(), result.begin(), operation);  // fault
  }

  void hour() {
    each(temperature, precipitation, fallen, Snowfall());  // fault
    each(snow, fallen, snow, thrust::plus<float>());  // fault
    each(temperature, albedo, melt, MeltRate());  // fault
    each(melt, snow, melt, thrust::minimum<float>());  // fault
    each(snow, melt, snow, thrust::minus<float>());  // fault
    each(water, melt, water, thrust::plus<float>());  // fault
    each(temperature, water, frozen, Refreezing());  // fault
    each(snow, frozen, snow, thrust::plus<float>());  // fault
    each(water, frozen, water, thrust::minus<float>());  // fault
    each(water, snow, water, Held());  // fault
    each(albedo, fallen, albedo, Aged());  // fault
  }

  void hour_at_once() {
    Hour whole{thrust::raw_pointer_cast(temperature.data()), thrust::raw_pointer_cast(precipitation.data()),
               thrust::raw_pointer_cast(snow.data()), thrust::raw_pointer_cast(water.data()),
               thrust::raw_pointer_cast(albedo.data())};
    thrust::counting_iterator<int> first(0);
    thrust::for_each(thrust::cuda::par_nosync, first, first + CELLS, whole);
  }
};

int main(int argc, char **argv) {
  bool fixed = is_fixed(argc, argv);
  Snowpack pack;
  return run(argc, argv, [&] {
    for (int hour = 0; hour < HOURS; hour++) {
      if (fixed)
        pack.hour_at_once();
      else
        pack.hour();  // fault
    }
  });
}
