/*
 * The steps of the update rules, written once over vf, a vector of any width. Each mirrors the function of its name in
 * aggregate/optim/formulas.go. The order of operations is equal, so the bits are equal.
 */

/* The operands of a rule: the scalars in every lane, and the addresses of the arrays. */
struct operands {
	vf scale, bound, lr, wd, keep, beta1, gain, beta2, gain2, eps, bias1, bias2;
	uint64_t w_at, s0_at, s1_at;
};

FN struct operands operands_of(const struct rwk_update *u)
{
	const float *k = u->scalar;

	return (struct operands){
		.scale = vf_all(k[RWK_K_SCALE]),
		.bound = vf_all(k[RWK_K_CLIP]),
		.lr = vf_all(k[RWK_K_LR]),
		.wd = vf_all(k[RWK_K_WD]),
		.keep = vf_all(k[RWK_K_KEEP]),
		.beta1 = vf_all(k[RWK_K_MOMENTUM]),
		.gain = vf_all(k[RWK_K_GAIN]),
		.beta2 = vf_all(k[RWK_K_BETA2]),
		.gain2 = vf_all(k[RWK_K_GAIN2]),
		.eps = vf_all(k[RWK_K_EPS]),
		.bias1 = vf_all(k[RWK_K_BIAS1]),
		.bias2 = vf_all(k[RWK_K_BIAS2]),
		.w_at = u->w,
		.s0_at = u->state[0],
		.s1_at = u->state[1],
	};
}

/* A rule takes the scaled gradient g of the vector at element i, updates the element, and returns the result. */
#define RULE(name) FN vf name(const struct operands o, uint64_t i, vf g)
#define LOAD(x) vf x = vf_load(rwk_at(o.x##_at, RWK_F32, i))
#define STORE(x) vf_store(rwk_at(o.x##_at, RWK_F32, i), x)

/* Adam's moving averages of the gradient and of its square. */
#define MOMENTS                                                                                                                    \
	LOAD(s0);                                                                                                                  \
	LOAD(s1);                                                                                                                  \
	s0 = o.beta1 * s0 + o.gain * g;                                                                                            \
	s1 = o.beta2 * s1 + o.gain2 * g * g;                                                                                       \
	STORE(s0);                                                                                                                 \
	STORE(s1)

/* LAMB's step before it is scaled by the norms. */
#define LAMB_STEP (s0 / o.bias1 / (vf_sqrt(s1 / o.bias2) + o.eps) + o.wd * w)

RULE(sum)
{
	(void)i;
	return vf_clip(g, o.bound);
}

RULE(sgd_mxnet_plain)
{
	LOAD(w);
	w = o.keep * w - o.lr * vf_clip(g, o.bound);
	STORE(w);
	return w;
}

RULE(sgd_mxnet)
{
	LOAD(w);
	LOAD(s0);
	s0 = o.beta1 * s0 - o.wd * w - o.lr * vf_clip(g, o.bound);
	w = w + s0;
	STORE(s0);
	STORE(w);
	return w;
}

RULE(nag_mxnet)
{
	LOAD(w);
	LOAD(s0);
	vf m = o.beta1 * s0;

	g = vf_clip(g, o.bound);
	w = w - m + o.gain * (m - o.lr * (g + o.wd * w));
	s0 = m - o.lr * (g + o.wd * w);
	STORE(s0);
	STORE(w);
	return w;
}

RULE(sgd_torch_plain)
{
	LOAD(w);
	g = vf_clip(g, o.bound) + o.wd * w;
	w = w - o.lr * g;
	STORE(w);
	return w;
}

RULE(sgd_torch)
{
	LOAD(w);
	LOAD(s0);
	g = vf_clip(g, o.bound) + o.wd * w;
	s0 = o.beta1 * s0 + o.gain * g;
	w = w - o.lr * s0;
	STORE(s0);
	STORE(w);
	return w;
}

RULE(nesterov_torch)
{
	LOAD(w);
	LOAD(s0);
	g = vf_clip(g, o.bound) + o.wd * w;
	s0 = o.beta1 * s0 + o.gain * g;
	g = g + o.beta1 * s0;
	w = w - o.lr * g;
	STORE(s0);
	STORE(w);
	return w;
}

RULE(adam_mxnet)
{
	LOAD(w);
	g = vf_clip(g + o.wd * w, o.bound);
	MOMENTS;
	w = w - o.lr * s0 / (vf_sqrt(s1) + o.eps);
	STORE(w);
	return w;
}

RULE(adam_torch)
{
	LOAD(w);
	g = vf_clip(g, o.bound) + o.wd * w;
	MOMENTS;
	w = w - o.lr * s0 / (vf_sqrt(s1) / o.bias2 + o.eps);
	STORE(w);
	return w;
}

RULE(adamw_mxnet)
{
	LOAD(w);
	g = vf_clip(g, o.bound);
	MOMENTS;
	w = w - o.lr * (s0 / (vf_sqrt(s1) + o.eps) + o.wd * w);
	STORE(w);
	return w;
}

RULE(adamw_torch)
{
	LOAD(w);
	g = vf_clip(g, o.bound);
	MOMENTS;
	w = o.keep * w - o.lr * s0 / (vf_sqrt(s1) / o.bias2 + o.eps);
	STORE(w);
	return w;
}

RULE(adagrad_mxnet)
{
	LOAD(w);
	LOAD(s0);
	g = vf_clip(g, o.bound);
	s0 = s0 + g * g;
	w = w - o.lr * (g / vf_sqrt(s0 + o.eps) + o.wd * w);
	STORE(s0);
	STORE(w);
	return w;
}

RULE(adagrad_torch)
{
	LOAD(w);
	LOAD(s0);
	g = vf_clip(g, o.bound) + o.wd * w;
	s0 = s0 + g * g;
	w = w - o.lr * g / (vf_sqrt(s0) + o.eps);
	STORE(s0);
	STORE(w);
	return w;
}

RULE(rmsprop_mxnet)
{
	LOAD(w);
	LOAD(s0);
	g = vf_clip(g + o.wd * w, o.bound);
	s0 = o.gain2 * (g * g) + o.beta2 * s0;
	w = w - o.lr * (g / vf_sqrt(s0 + o.eps));
	STORE(s0);
	STORE(w);
	return w;
}

RULE(rmsprop_torch_plain)
{
	LOAD(w);
	LOAD(s0);
	g = vf_clip(g, o.bound) + o.wd * w;
	s0 = o.beta2 * s0 + o.gain2 * g * g;
	w = w - o.lr * g / (vf_sqrt(s0) + o.eps);
	STORE(s0);
	STORE(w);
	return w;
}

RULE(rmsprop_torch)
{
	LOAD(w);
	LOAD(s0);
	LOAD(s1);
	g = vf_clip(g, o.bound) + o.wd * w;
	s0 = o.beta2 * s0 + o.gain2 * g * g;
	s1 = o.beta1 * s1 + g / (vf_sqrt(s0) + o.eps);
	w = w - o.lr * s1;
	STORE(s0);
	STORE(s1);
	STORE(w);
	return w;
}

RULE(lamb)
{
	LOAD(w);
	g = vf_clip(g, o.bound);
	MOMENTS;
	return LAMB_STEP;
}

RULE(lamb_apply)
{
	LOAD(w);
	LOAD(s0);
	LOAD(s1);
	(void)g;
	w = w - o.lr * LAMB_STEP;
	STORE(w);
	return w;
}
