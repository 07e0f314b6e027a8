"""forms.py: operations that only the device has, as the host computes them: PyTorch's attention, of which CUDA has
forms of its own. What only the device's backward wants (log-sum-exp, seeds) is not computed, and the backward here does
without it. Dropout inside attention is left out, because its mask is in a kernel's registers."""
import torch


class Results(list):
    """Results in the order of the operation's tensors; None: not computed."""


def _scores(q, k, bias, is_causal, scale):
    """Attention weights, in long floats."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    s = torch.matmul(q.float(), k.float().transpose(-2, -1)) * scale
    if bias is not None:
        s = s + bias.float()
    if is_causal:
        hidden = torch.ones(s.shape[-2:], dtype=torch.bool).tril().logical_not()
        s = s.masked_fill(hidden, float("-inf"))
    return torch.softmax(s, -1).nan_to_num(0.0), scale


def _forward(q, k, v, bias, is_causal, scale):
    weights, _ = _scores(q, k, bias, is_causal, scale)
    return torch.matmul(weights, v.float())


def _backward(grad, q, k, v, bias, is_causal, scale):
    weights, scale = _scores(q, k, bias, is_causal, scale)
    grad = grad.float()
    to_weights = torch.matmul(grad, v.float().transpose(-2, -1))
    to_scores = weights * (to_weights - (to_weights * weights).sum(-1, keepdim=True))
    return (torch.matmul(to_scores, k.float()) * scale,
            torch.matmul(to_scores.transpose(-2, -1), q.float()) * scale,
            torch.matmul(weights.transpose(-2, -1), grad), to_scores)


def _efficient(q, k, v, bias, wants_sums, dropout=0.0, is_causal=False, *, scale=None):
    return Results([_forward(q, k, v, bias, is_causal, scale), None, None, None])


def _cudnn(q, k, v, bias, wants_sums, dropout=0.0, is_causal=False, wants_mask=False, *, scale=None):
    return Results([_forward(q, k, v, bias, is_causal, scale)])


def _flash(q, k, v, dropout=0.0, is_causal=False, wants_mask=False, *, scale=None):
    return Results([_forward(q, k, v, None, is_causal, scale)])


def _efficient_backward(grad, q, k, v, bias, out, sums, seed, offset, dropout, wanted, is_causal=False, *, scale=None):
    to_q, to_k, to_v, to_bias = _backward(grad, q, k, v, bias, is_causal, scale)
    gradients = [to_q, to_k, to_v]
    if bias is not None and len(wanted) > 3 and wanted[3]:
        gradients.append(to_bias.sum_to_size(bias.shape))
    return Results(gradients)


def _flash_backward(grad, q, k, v, out, sums, cum_q, cum_k, most_q, most_k, dropout, is_causal, seed, offset, *,
                    scale=None):
    return Results(_backward(grad, q, k, v, None, is_causal, scale)[:3])


def _cudnn_backward(grad, q, k, v, out, sums, seed, offset, bias, cum_q, cum_k, most_q, most_k, dropout, is_causal, *,
                    scale=None):
    return Results(_backward(grad, q, k, v, bias, is_causal, scale)[:3])


# The arguments that the forms below look at.
READ = frozenset(("grad_out", "grad_out_", "query", "key", "value", "attn_bias"))
TABLE = {
    "aten::_scaled_dot_product_efficient_attention": _efficient,
    "aten::_scaled_dot_product_efficient_attention_backward": _efficient_backward,
    "aten::_scaled_dot_product_flash_attention": _flash,
    "aten::_scaled_dot_product_flash_attention_backward": _flash_backward,
    "aten::_scaled_dot_product_cudnn_attention": _cudnn,
    "aten::_scaled_dot_product_cudnn_attention_backward": _cudnn_backward,
}
