/*
 * layer_frozen.c: parameters without gradients: which they are, that all ranks mean the same ones, and that the others
 * have somewhere to put theirs.
 *
 * What is frozen is said with the weights of each forward, as requires_grad is in a framework, and not once in the
 * configuration: a job freezes and thaws as it goes. NULL gradients as the sign were rejected: a pointer that was
 * forgotten would freeze a parameter without a word. The bits of all ranks travel in the upper half of the word that
 * carries the proposals of remedies, so comparing them costs no message.
 */
#include "moe_core/layer/layer_state.h"

#include <stdio.h>

/* One parameter: its name, whether this layer has it, where its gradient goes. */
struct entry {
    const char *name;
    bool there;
    const void *grad;
};

static struct entry entry_of(const moe_layer_t *l, enum moe_layer_parameter parameter)
{
    const struct moe_layer_config *c = &l->config;
    const struct moe_layer_weights *w = &l->weights;
    bool shared = c->shared_ffn > 0;
    const struct entry table[MOE_LAYER_PARAMETERS] = {
        [MOE_LAYER_GATE] = {"gate", true, w->d_gate},
        [MOE_LAYER_GATE_BIAS] = {"gate_bias", c->router.gate_bias, w->d_gate_bias},
        [MOE_LAYER_W1] = {"w1", true, w->d_w1},
        [MOE_LAYER_B1] = {"b1", c->has_bias, w->d_b1},
        [MOE_LAYER_W2] = {"w2", true, w->d_w2},
        [MOE_LAYER_B2] = {"b2", c->has_bias, w->d_b2},
        [MOE_LAYER_SHARED_W1] = {"shared.w1", shared, w->shared.d_w1},
        [MOE_LAYER_SHARED_B1] = {"shared.b1", shared && c->shared_bias, w->shared.d_b1},
        [MOE_LAYER_SHARED_W2] = {"shared.w2", shared, w->shared.d_w2},
        [MOE_LAYER_SHARED_B2] = {"shared.b2", shared && c->shared_bias, w->shared.d_b2},
        [MOE_LAYER_SHARED_GATE] = {"shared.gate", shared && c->shared_gate, w->shared.d_gate},
    };
    return table[parameter];
}

bool layer_frozen(const moe_layer_t *l, enum moe_layer_parameter parameter)
{
    return (l->weights.frozen >> parameter & 1u) != 0;
}

static uint32_t bit(const moe_layer_t *l, enum moe_layer_parameter from, int to)
{
    return layer_frozen(l, from) ? 1u << to : 0;
}

uint32_t layer_frozen_experts(const moe_layer_t *l)
{
    return bit(l, MOE_LAYER_W1, MOE_EXPERTS_W1) | bit(l, MOE_LAYER_B1, MOE_EXPERTS_B1) |
           bit(l, MOE_LAYER_W2, MOE_EXPERTS_W2) | bit(l, MOE_LAYER_B2, MOE_EXPERTS_B2);
}

uint32_t layer_frozen_shared(const moe_layer_t *l)
{
    return bit(l, MOE_LAYER_SHARED_W1, MOE_SHARED_W1) | bit(l, MOE_LAYER_SHARED_B1, MOE_SHARED_B1) |
           bit(l, MOE_LAYER_SHARED_W2, MOE_SHARED_W2) | bit(l, MOE_LAYER_SHARED_B2, MOE_SHARED_B2) |
           bit(l, MOE_LAYER_SHARED_GATE, MOE_SHARED_GATE);
}

/* Takes the bits of this forward. A bit of a parameter that the layer does not have says nothing, and is cleared. */
int layer_freeze(moe_layer_t *l)
{
    uint32_t given = l->weights.frozen;
    if (given >> MOE_LAYER_PARAMETERS != 0) {
        return LAYER_FAIL(l, MOE_E_ARG, "frozen parameters 0x%x: a layer has %d", given, (int)MOE_LAYER_PARAMETERS);
    }
    for (int i = 0; i < MOE_LAYER_PARAMETERS; i++) {
        l->weights.frozen &= entry_of(l, (enum moe_layer_parameter)i).there ? UINT32_MAX : ~(1u << i);
    }
    return 0;
}

/* The names of parameters, separated by commas; "nothing" for none. */
static void write_names(const moe_layer_t *l, uint32_t bits, char *out, size_t room)
{
    size_t used = (size_t)snprintf(out, room, "%s", bits == 0 ? "nothing" : "");
    for (int i = 0; i < MOE_LAYER_PARAMETERS; i++) {
        if ((bits >> i & 1u) != 0 && used < room) {
            used += (size_t)snprintf(out + used, room - used, "%s%s", used > 0 ? ", " : "",
                                     entry_of(l, (enum moe_layer_parameter)i).name);
        }
    }
}

/* After the exchange: every rank sees the bits of all ranks, and finds the same difference. */
int layer_check_frozen(const moe_layer_t *l)
{
    int32_t rank = 0;
    uint16_t theirs = 0, first = 0;
    char those[160], these[160];
    if (moe_dispatcher_alike(l->dispatcher, &rank, &theirs, &first)) {
        return 0;
    }
    write_names(l, theirs, those, sizeof(those));
    write_names(l, first, these, sizeof(these));
    return LAYER_FAIL(l, MOE_E_ARG,
                      "rank %d of the group freezes %s, rank 0 freezes %s: freeze the same parameters on all ranks%s",
                      rank, those, these, moe_dispatcher_standing(l->dispatcher) ? " (as last told)" : "");
}

/* Whether a backward can follow: some gradient is given, or none is wanted because every parameter is frozen. */
bool layer_goes_back(const moe_layer_t *l)
{
    bool given = false, wanted = false;
    for (int i = 0; i < MOE_LAYER_PARAMETERS; i++) {
        struct entry e = entry_of(l, (enum moe_layer_parameter)i);
        given = given || (e.there && e.grad != NULL);
        wanted = wanted || (e.there && !layer_frozen(l, (enum moe_layer_parameter)i));
    }
    return given || !wanted;
}

int layer_check_gradients(const moe_layer_t *l)
{
    for (int i = 0; i < MOE_LAYER_PARAMETERS; i++) {
        struct entry e = entry_of(l, (enum moe_layer_parameter)i);
        if (e.there && e.grad == NULL && !layer_frozen(l, (enum moe_layer_parameter)i)) {
            return LAYER_FAIL(l, MOE_E_ARG,
                              "backward of a forward without gradients: that of %s is missing, and it is "
                              "not frozen",
                              e.name);
        }
    }
    return 0;
}
