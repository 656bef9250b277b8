/* Compressed gradients, with what is left for the next ones, and compressed answers. */
#define _GNU_SOURCE
#include "../kernel/codecs.h"
#include "internal.h"

#include <math.h>
#include <string.h>
#include <sys/mman.h>

/* The places in a payload's header of the bits RWK_CODEC_MORE and RWK_CODEC_HASH, and of what a codec lost, in squares. */
enum { PAYLOAD_BITS = 3, PAYLOAD_LOST = 12 };

enum { IN_PLACE = 1 << 30, PAGE = 4096 };

/*
 * Returns zeros, with their pages in place, so that the data path does not wait for them. Clearing very large memory would make
 * the caller wait for minutes, so its pages come as they are used.
 */
static float *zeros(uint64_t elems)
{
	const size_t bytes = elems * sizeof(float), late = bytes > IN_PLACE ? bytes & ~(size_t)(PAGE - 1) : 0;
	void *p;

	if (posix_memalign(&p, late ? PAGE : 64, bytes))
		return NULL;
	if (!late || madvise(p, late, MADV_DONTNEED)) /* memory that is locked keeps its pages */
		memset(p, 0, bytes);
	else
		memset((char *)p + late, 0, bytes - late);
	return p;
}

static void free_coding(struct coding *k)
{
	if (!k)
		return;
	free(k->residual);
	free(k->kept);
	free(k);
}

void coding_free(struct tensor *t)
{
	free_coding(t->coding);
	free(t->reference);
}

int coding_refer(struct tensor *t)
{
	t->reference = zeros(t->elems);
	return t->reference ? 0 : -ENOMEM;
}

static struct coding *new_coding(uint64_t elems)
{
	struct coding *k = calloc(1, sizeof *k);

	if (!k)
		return NULL;
	k->residual = zeros(elems);
	k->kept = malloc(elems * sizeof(float)); /* without pages until a chunk is NACKed */
	if (k->residual && k->kept)
		return k;
	free_coding(k);
	return NULL;
}

static int check(const struct rw_worker *w, uint32_t tensor, const struct rw_codec *codec)
{
	if (codec->size < sizeof *codec)
		return rwf_fail(EINVAL, "compress: the codec's size is %u: set it to sizeof(struct rw_codec), %zu", codec->size,
				sizeof *codec);
	if (tensor >= w->ntensors)
		return rwf_fail(EINVAL, "compress: tensor %u of %u", tensor, w->ntensors);
	if (codec->id >= RWK_CODECS)
		return rwf_fail(EINVAL, "compress: tensor %u: unknown codec %u: use what Join answered", tensor, codec->id);
	if (codec->id && !w->tensors[tensor].width && w->tensors[tensor].wire_type != RW_F32)
		return rwf_fail(EINVAL, "compress: tensor %u travels in 16 bits: let it travel as f32", tensor);
	return 0;
}

static void set_codec(struct tensor *t, const struct rw_codec *codec, uint32_t from)
{
	struct coding *k = t->coding;

	if (t->gradients >= k->from)
		k->next = k->later; /* no gradient has begun since that one was due */
	k->later = *codec;
	k->from = from;
}

int rw_worker_compress(rw_worker *w, uint32_t tensor, const struct rw_codec *codec, uint32_t from)
{
	struct coding *k = NULL;
	uint64_t elems = 0;
	int rc, rows;

	enter(w);
	rc = check(w, tensor, codec);
	rows = !rc && w->tensors[tensor].width;
	if (!rc && codec->id && !w->tensors[tensor].coding)
		elems = w->tensors[tensor].elems;
	pthread_mutex_unlock(&w->lock);
	if (rc || rows)
		return rc;
	if (elems && !(k = new_coding(elems)))
		return rwf_fail(ENOMEM, "compress: no memory for what tensor %u leaves for later, %llu bytes", tensor,
				(unsigned long long)elems * 4);
	enter(w);
	if (!w->tensors[tensor].coding) {
		w->tensors[tensor].coding = k;
		k = NULL;
	}
	if (from && w->tensors[tensor].gradients > from) {
		rc = rwf_fail(EAGAIN, "compress: tensor %u from gradient %u on: %u have begun: name a later one", tensor, from,
			      w->tensors[tensor].gradients);
	} else if (w->tensors[tensor].coding) {
		set_codec(&w->tensors[tensor], codec, from);
	}
	pthread_mutex_unlock(&w->lock);
	free_coding(k);
	return rc;
}

void rw_worker_codec(rw_worker *w, uint32_t tensor, struct rw_codec *codec)
{
	const struct coding *k;

	enter(w);
	k = w->tensors[tensor].coding;
	*codec = k && !k->raw ? k->up : (struct rw_codec){.size = sizeof *codec};
	pthread_mutex_unlock(&w->lock);
}

void rw_worker_flush(rw_worker *w)
{
	enter(w);
	for (uint32_t i = 0; i < w->ntensors; i++) {
		w->tensors[i].flush |= FLUSH_NEXT;
		if (w->tensors[i].coding)
			w->tensors[i].coding->flush = 1;
	}
	pthread_mutex_unlock(&w->lock);
}

int rw_worker_residual(rw_worker *w, uint32_t tensor, float *values, int set)
{
	const struct tensor *t;
	int rc = 0;

	enter(w);
	t = tensor < w->ntensors ? &w->tensors[tensor] : NULL;
	if (!t || !t->coding)
		rc = rwf_fail(ENOENT, "residual: tensor %u has none: compress it first", tensor);
	else if (t->active)
		rc = rwf_fail(EBUSY, "residual: tensor %u is being exchanged: wait for it first", tensor);
	else
		memcpy(set ? t->coding->residual : values, set ? values : t->coding->residual, t->elems * sizeof(float));
	pthread_mutex_unlock(&w->lock);
	return rc;
}

uint8_t coding_begin(struct tensor *t)
{
	const float rate = t->hyper[RECORD_LR] * t->hyper[RECORD_SCALE];
	struct coding *k = t->coding;

	if (t->gradients > k->from)
		k->next = k->later;
	k->flush |= k->up.id && !k->next.id;
	k->up = k->next;
	if (!k->up.id && !k->flush)
		return 0;
	k->raw = k->flush;
	k->flush = 0;
	k->lost = 0;
	k->factor = 1;
	if (isfinite(rate) && rate != 0) {
		if (!k->up.as_is && k->rate != 0 && isnormal(k->rate / rate))
			k->factor = k->rate / rate;
		k->rate = rate;
	}
	return 1;
}

void coding_send(struct rw_worker *w, struct chunk *c, char *payload)
{
	const struct tensor *t = &w->tensors[c->tensor];
	struct coding *k = t->coding;
	const struct rwk_encoding e = {
		.values = (uintptr_t)t->src + c->offset * type_size(t->memory_type),
		.memory = (uintptr_t)(k->residual + c->offset),
		.payload = (uintptr_t)payload,
		.n = c->elems,
		.seed = w->cfg.seed,
		.first = c->offset,
		.param = k->up.param,
		.step = t->gradients - 1,
		.tensor = c->tensor,
		.rank = w->cfg.rank,
		.factor = k->factor,
		.type = t->memory_type,
		.codec = k->raw ? 0 : k->up.id,
		.stochastic = k->up.stochastic,
	};

	if (c->kept) {
		memcpy(payload, k->kept + c->offset * sizeof(float), c->length);
		return;
	}
	c->length = (uint32_t)rwk_encode(w->cfg.isa, &e);
	if (c->length < c->elems * sizeof(float)) {
		float lost;

		memcpy(&lost, payload + PAYLOAD_LOST, sizeof lost);
		k->lost += lost;
	} else if (k->raw && rwk_sumsq(w->cfg.isa, e.memory, e.n) != 0) {
		k->flush = 1; /* the gradient could not take it along */
	}
}

void coding_more(const struct chunk *c, char *payload)
{
	if (!c->kept && c->length < c->elems * sizeof(float))
		payload[PAYLOAD_BITS] = RWK_CODEC_MORE;
}

void coding_keep(struct rw_worker *w, struct chunk *c, const char *payload)
{
	if (!c->kept)
		memcpy(w->tensors[c->tensor].coding->kept + c->offset * sizeof(float), payload, c->length);
	c->kept = 1;
}

const char *coding_receive(struct rw_worker *w, const struct chunk *c, const char *payload, uint32_t length)
{
	const struct tensor *t = &w->tensors[c->tensor];
	const uint64_t dst = (uintptr_t)t->dst + c->offset * type_size(t->memory_type);
	const uint64_t reference = t->reference ? (uintptr_t)(t->reference + c->offset) : 0, src = (uintptr_t)payload;
	/* Where both have one type, a pass adds the change to the reference and writes the result to the destination. */
	const uint64_t both[] = {reference, dst};
	uint64_t form;
	const char *wrong = rwk_check(payload, length, c->elems, &form);

	if (wrong)
		return wrong;
	if (!form) {
		rwk_convert(w->cfg.isa, dst, t->memory_type, src, RWK_F32, c->elems, past_cache(w));
		if (reference && t->kind != RW_PULL) /* the aggregator compresses against what all workers got */
			rwk_convert(w->cfg.isa, reference, RWK_F32, src, RWK_F32, c->elems, 0);
	} else if (!reference) {
		rwk_sum(w->cfg.isa, &dst, 1, t->memory_type, &src, &form, 1, RWK_F32, c->elems, 0, past_cache(w));
	} else {
		rwk_sum(w->cfg.isa, both, t->memory_type == RWK_F32 ? 2 : 1, RWK_F32, &src, &form, 1, RWK_F32, c->elems, 1, 0);
		if (t->memory_type != RWK_F32)
			rwk_convert(w->cfg.isa, dst, t->memory_type, reference, RWK_F32, c->elems, past_cache(w));
		if (payload[PAYLOAD_BITS] & RWK_CODEC_HASH) {
			uint32_t hash;

			memcpy(&hash, payload + length - sizeof hash, sizeof hash);
			if (hash != rwk_hash(t->reference + c->offset, c->elems))
				return "the parameters here differ from those of the other workers";
		}
	}
	return NULL;
}
