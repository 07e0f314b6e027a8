/* vector_types.h: the few vector types that host programs meet in the CUDA runtime interface. See driver_types.h. */
#ifndef HOSTNCCL_VECTOR_TYPES_H
#define HOSTNCCL_VECTOR_TYPES_H

struct uint3 {
    unsigned int x, y, z;
};

struct dim3 {
    unsigned int x, y, z;
#ifdef __cplusplus
    dim3(unsigned int vx = 1, unsigned int vy = 1, unsigned int vz = 1) : x(vx), y(vy), z(vz)
    {
    }
    dim3(uint3 v) : x(v.x), y(v.y), z(v.z)
    {
    }
#endif
};

typedef struct uint3 uint3;
typedef struct dim3 dim3;

#endif
