/*
 * together.c: combinations of options of moe_train that make no sense, one table row each.
 *
 * An option that would silently do nothing is refused like one that cannot work: a user who asks for a wrong behaviour
 * and sees a healthy run would believe that the behaviour does no harm. The combinations are checked before any rank is
 * started. What only a layer can judge (shapes, presets, kinds of dispatcher) is left to moe_layer_new, whose message
 * names rank and layer.
 */
#include "moe_core/train/together.h"

#include <stdio.h>

struct rule {
    bool broken;
    const char *text;
};

static bool report(const struct rule *rules, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (rules[i].broken) {
            fprintf(stderr, "moe_train: %s\n", rules[i].text);
            return false;
        }
    }
    return true;
}

/* Checks the options of which a layer is made. */
static bool layer_fits(const struct train_options *o)
{
    bool pads_tokens = o->dispatcher == MOE_DISPATCH_ALLGATHER || o->dispatcher == MOE_DISPATCH_HYBRIDEP;
    bool own_capacity = o->legacy.layer.dispatcher.local_capacity;
    const struct rule rules[] = {
        {o->tp == 1 && o->tp_mode != MOE_TP_SEQUENCE, "--tp-mode without --tp: there is nothing to share"},
        {o->shared == 0 && o->shared_gate, "--shared-gate without --shared"},
        {o->shared == 0 && o->shared_overlap, "--shared-overlap without --shared"},
        {o->shared_overlap && o->dispatcher != MOE_DISPATCH_ALLTOALL,
         "--shared-overlap: only inside --dispatcher alltoall"},
        {o->shared_overlap && o->recompute, "--shared-overlap with --recompute: not supported"},
        {o->shared_overlap && options_replicate(o), "--shared-overlap with --tp-mode split or shard: not supported"},
        {o->keep_routing && !o->recompute, "--keep-routing without --recompute: nothing is routed twice"},
        {o->shared > 0 && o->vary_tokens && o->tp > 1 && o->tp_mode == MOE_TP_SEQUENCE,
         "--shared with --vary-tokens and --tp: the shared expert gathers the tokens of tp's ranks and needs equal "
         "numbers"},
        {o->pad_capacity && o->capacity == 0, "--pad-capacity without --capacity"},
        {o->pad_capacity && o->dispatcher != MOE_DISPATCH_ALLTOALL, "--pad-capacity: only with --dispatcher alltoall"},
        {o->pad_capacity && o->vary_tokens && !own_capacity,
         "--pad-capacity with --vary-tokens: every rank has the same number of tokens then (but see --legacy "
         "local-capacity)"},
        {o->uneven != MOE_UNEVEN_NONE && !pads_tokens, "--uneven: only allgather and hybridep need it"},
        {o->token_bound > 0 && !pads_tokens, "--token-bound: only allgather and hybridep have one"},
        {o->save_every > 0 && o->save == NULL, "--save-every without --save DIR: there is nowhere to save to"},
        {o->until > o->steps, "--until is more than --steps"},
        {o->must_learn && o->until > 0 && o->until < o->steps, "--must-learn with --until: the last steps do not come"},
        {o->token_bound > 0 && o->token_bound < o->tokens, "--token-bound is less than --tokens"},
    };
    return report(rules, sizeof(rules) / sizeof(rules[0]));
}

/* Refuses wrong behaviours that this job would never show. */
static bool legacy_fits(const struct train_options *o)
{
    const struct moe_options *l = &o->legacy.layer;
    bool layer_sums = options_replicate(o), buckets = o->overlap || o->buckets > 0;
    const struct rule rules[] = {
        {l->legacy_recompute_flip && !o->recompute,
         "--legacy recompute-flip without --recompute: nothing is routed twice"},
        {l->legacy_router_unsummed && !layer_sums,
         "--legacy router-unsummed without --tp and --tp-mode split or shard: no layer sums the router's gradient"},
        {l->legacy_router_summed_twice && !layer_sums,
         "--legacy router-summed-twice without --tp and --tp-mode split or shard: no layer sums the router's gradient"},
        {l->legacy_router_unsummed && l->legacy_router_summed_twice,
         "--legacy router-unsummed with router-summed-twice"},
        {o->legacy.bucket_wait && !o->overlap, "--legacy bucket-wait without --overlap: no bucket waits for gradients"},
        {o->legacy.bucket_only_with_grad && !buckets, "--legacy only-with-grad without --buckets or --overlap"},
        {l->dispatcher.slack_uninitialised && !l->dispatcher.static_rows,
         "--legacy slack-uninitialised without --legacy static-rows: there is no slack"},
        {l->dispatcher.local_capacity && !o->pad_capacity,
         "--legacy local-capacity without --capacity and --pad-capacity"},
        {o->hazard.row != NULL && o->resume != NULL,
         "--hazard with --resume: what the program keeps beside the model is in no checkpoint"},
        {o->inject.fault != NULL && buckets && inject_reduces(&o->inject),
         "--inject of a fault in a gradient AllReduce with --overlap or --buckets: that call is not made"},
    };
    return report(rules, sizeof(rules) / sizeof(rules[0]));
}

bool options_fit_together(const struct train_options *o)
{
    return layer_fits(o) && legacy_fits(o);
}
