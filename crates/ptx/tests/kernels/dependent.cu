// A kernel that starts before the one in front of it has ended: programmatic dependent launch.

// y[i] += x[i], for i < n.
extern "C" __global__ void __launch_bounds__(64) add(const float* __restrict__ x, float* __restrict__ y, int n) {
  int i = blockIdx.x * 64 + threadIdx.x;
  cudaGridDependencySynchronize();
  if (i < n) y[i] += x[i];
  cudaTriggerProgrammaticLaunchCompletion();
}
