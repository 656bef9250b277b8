/* Vectors of four: NEON, which every arm64 CPU has. */
#include <arm_neon.h>

#define TARGET
#define REGISTER "+w"
#define WIDTH 4

typedef float32x4_t vf;
typedef int32x4_t vi;

FN vi vi_max(vi x, vi y)
{
	return vmaxq_s32(x, y);
}

/* Returns the sign bits, the first lane's lowest. */
FN uint64_t vi_signs(vi x)
{
	const int32x4_t lane = {0, 1, 2, 3};

	return vaddvq_u32(vshlq_u32(vshrq_n_u32(vreinterpretq_u32_s32(x), 31), lane));
}

FN vi vi_widen(const void *p)
{
	uint32_t bytes;

	memcpy(&bytes, p, sizeof bytes);
	return vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8(bytes))));
}

/* Returns sum + x * y, whose product is exact. */
FN vf vf_add_product(vf sum, vf x, vf y)
{
	return vfmaq_f32(sum, x, y);
}

FN vf vf_sqrt(vf x)
{
	return vsqrtq_f32(x);
}

FN vf vf_floor(vf x)
{
	return vrndmq_f32(x);
}

/* Returns x limited to ±bound. A NaN passes, because it compares false. */
FN vf vf_clip(vf x, vf bound)
{
	x = vbslq_f32(vcltq_f32(bound, x), bound, x);
	return vbslq_f32(vcgtq_f32(-bound, x), -bound, x);
}

FN vf vf_load_bf16(const uint16_t *p)
{
	return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}

FN void vf_store_bf16(uint16_t *p, vf x)
{
	uint32x4_t b = vreinterpretq_u32_f32(x), high = vshrq_n_u32(b, 16);
	uint32x4_t odd = vandq_u32(high, vdupq_n_u32(1));
	uint32x4_t round = vshrq_n_u32(vaddq_u32(b, vaddq_u32(odd, vdupq_n_u32(0x7fff))), 16);
	uint32x4_t quiet = vorrq_u32(high, vdupq_n_u32(0x40));

	vst1_u16(p, vmovn_u32(vbslq_u32(vceqq_f32(x, x), round, quiet)));
}

FN vf vf_load_f16(const uint16_t *p)
{
	return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}

FN void vf_store_f16(uint16_t *p, vf x)
{
	vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x)));
}

typedef float64x2_t vsq;
#define SQ_VECTORS 8

FN vsq vsq_widen(const float *p)
{
	return vcvt_f64_f32(vld1_f32(p));
}
