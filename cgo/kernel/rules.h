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

/*
 * A weight and its states, in every lane. A rule updates them with the scaled gradient g. Its result is w, the new weight if the
 * rule writes weights.
 */
struct element {
	vf w, s0, s1;
};

FN struct element load_element(const struct operands o, uint64_t i, int w, int states)
{
	struct element e = {0};

	if (w)
		e.w = vf_load(rwk_at(o.w_at, RWK_F32, i));
	if (states > 0)
		e.s0 = vf_load(rwk_at(o.s0_at, RWK_F32, i));
	if (states > 1)
		e.s1 = vf_load(rwk_at(o.s1_at, RWK_F32, i));
	return e;
}

FN void store_element(const struct operands o, uint64_t i, const struct element *e, int w, int states)
{
	if (states > 0)
		vf_store(rwk_at(o.s0_at, RWK_F32, i), e->s0);
	if (states > 1)
		vf_store(rwk_at(o.s1_at, RWK_F32, i), e->s1);
	if (w)
		vf_store(rwk_at(o.w_at, RWK_F32, i), e->w);
}

#define RULE(name) FN void name(const struct operands o, struct element *e, vf g)

/* Advances Adam's moving averages of the gradient and of its square. */
RULE(moments)
{
	e->s0 = o.beta1 * e->s0 + o.gain * g;
	e->s1 = o.beta2 * e->s1 + o.gain2 * g * g;
}

/* Returns LAMB's step before it is scaled by the norms. */
FN vf lamb_step(const struct operands o, const struct element *e)
{
	return e->s0 / o.bias1 / (vf_sqrt(e->s1 / o.bias2) + o.eps) + o.wd * e->w;
}

RULE(sum)
{
	e->w = vf_clip(g, o.bound);
}

RULE(sgd_mxnet_plain)
{
	e->w = o.keep * e->w - o.lr * vf_clip(g, o.bound);
}

RULE(sgd_mxnet)
{
	e->s0 = o.beta1 * e->s0 - o.wd * e->w - o.lr * vf_clip(g, o.bound);
	e->w = e->w + e->s0;
}

RULE(nag_mxnet)
{
	vf m = o.beta1 * e->s0;

	g = vf_clip(g, o.bound);
	e->w = e->w - m + o.gain * (m - o.lr * (g + o.wd * e->w));
	e->s0 = m - o.lr * (g + o.wd * e->w);
}

RULE(sgd_torch_plain)
{
	g = vf_clip(g, o.bound) + o.wd * e->w;
	e->w = e->w - o.lr * g;
}

RULE(sgd_torch)
{
	g = vf_clip(g, o.bound) + o.wd * e->w;
	e->s0 = o.beta1 * e->s0 + o.gain * g;
	e->w = e->w - o.lr * e->s0;
}

RULE(nesterov_torch)
{
	g = vf_clip(g, o.bound) + o.wd * e->w;
	e->s0 = o.beta1 * e->s0 + o.gain * g;
	e->w = e->w - o.lr * (g + o.beta1 * e->s0);
}

RULE(adam_mxnet)
{
	moments(o, e, vf_clip(g + o.wd * e->w, o.bound));
	e->w = e->w - o.lr * e->s0 / (vf_sqrt(e->s1) + o.eps);
}

RULE(adam_torch)
{
	moments(o, e, vf_clip(g, o.bound) + o.wd * e->w);
	e->w = e->w - o.lr * e->s0 / (vf_sqrt(e->s1) / o.bias2 + o.eps);
}

RULE(adamw_mxnet)
{
	moments(o, e, vf_clip(g, o.bound));
	e->w = e->w - o.lr * (e->s0 / (vf_sqrt(e->s1) + o.eps) + o.wd * e->w);
}

RULE(adamw_torch)
{
	moments(o, e, vf_clip(g, o.bound));
	e->w = o.keep * e->w - o.lr * e->s0 / (vf_sqrt(e->s1) / o.bias2 + o.eps);
}

RULE(sparse_adam_torch)
{
	g = vf_clip(g, o.bound);
	e->s0 = e->s0 + (g - e->s0) * o.gain;
	e->s1 = e->s1 + (g * g - e->s1) * o.gain2;
	e->w = e->w - o.lr * (e->s0 / (vf_sqrt(e->s1) + o.eps));
}

RULE(adagrad_mxnet)
{
	g = vf_clip(g, o.bound);
	e->s0 = e->s0 + g * g;
	e->w = e->w - o.lr * (g / vf_sqrt(e->s0 + o.eps) + o.wd * e->w);
}

RULE(adagrad_torch)
{
	g = vf_clip(g, o.bound) + o.wd * e->w;
	e->s0 = e->s0 + g * g;
	e->w = e->w - o.lr * g / (vf_sqrt(e->s0) + o.eps);
}

RULE(rmsprop_mxnet)
{
	g = vf_clip(g + o.wd * e->w, o.bound);
	e->s0 = o.gain2 * (g * g) + o.beta2 * e->s0;
	e->w = e->w - o.lr * (g / vf_sqrt(e->s0 + o.eps));
}

RULE(rmsprop_torch_plain)
{
	g = vf_clip(g, o.bound) + o.wd * e->w;
	e->s0 = o.beta2 * e->s0 + o.gain2 * g * g;
	e->w = e->w - o.lr * g / (vf_sqrt(e->s0) + o.eps);
}

RULE(rmsprop_torch)
{
	g = vf_clip(g, o.bound) + o.wd * e->w;
	e->s0 = o.beta2 * e->s0 + o.gain2 * g * g;
	e->s1 = o.beta1 * e->s1 + g / (vf_sqrt(e->s0) + o.eps);
	e->w = e->w - o.lr * e->s1;
}

RULE(ftrl_mxnet)
{
	vf root = vf_sqrt(e->s1);

	g = vf_clip(g, o.bound);
	e->s1 = e->s1 + g * g;
	e->s0 = e->s0 + (g - (vf_sqrt(e->s1) - root) * e->w / o.lr);
	e->w = (vf_clip(e->s0, o.beta2) - e->s0) / ((o.eps + vf_sqrt(e->s1)) / o.lr + o.wd);
}

RULE(lamb)
{
	moments(o, e, vf_clip(g, o.bound));
	e->w = lamb_step(o, e);
}

RULE(lamb_apply)
{
	(void)g;
	e->w = e->w - o.lr * lamb_step(o, e);
}
