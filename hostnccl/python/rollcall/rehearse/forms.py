"""forms.py: operations that only the device has, as the host computes them: PyTorch's attention, batch norms and
recurrent cells, of which CUDA has forms of its own. What only the device's backward of attention wants (log-sum-exp,
seeds) is not computed, and the backward here does without it. Dropout inside attention is left out, because its mask is
in a kernel's registers."""
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
    # Who sees nothing gets nothing; a number that is none stays what it is.
    return torch.softmax(s, -1).masked_fill((s == float("-inf")).all(-1, keepdim=True), 0.0), scale


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


def _batch_norm(x, weight, bias, mean, var, training, momentum, epsilon):
    return Results([*torch.native_batch_norm(x, weight, bias, mean, var, training, momentum, epsilon)])


def _batch_norm_backward(x, grad, weight, mean, var, saved_mean, saved_var, epsilon, reserve):
    return Results([*torch.ops.aten.native_batch_norm_backward(grad, x, weight, mean, var, saved_mean, saved_var, True,
                                                               epsilon, [True, True, True])])


def _log_sigmoid_backward(grad, x, buffer):
    return Results([grad * torch.sigmoid(-x)])


def _rms_norm_backward(grad, x, shape, rstd, weight, wanted):
    last = tuple(range(x.dim() - len(shape), x.dim()))
    x, grad = x.float() if x.element_size() < 4 else x, grad.float() if grad.element_size() < 4 else grad
    rstd = rstd.reshape(x.shape[:x.dim() - len(shape)] + (1,) * len(shape))
    even, scaled = x * rstd, grad if weight is None else grad * weight
    to_x = rstd * (scaled - even * (scaled * even).mean(last, keepdim=True))
    to_weight = None if weight is None else (grad * even).sum(tuple(range(x.dim() - len(shape))))
    return Results([to_x if wanted[0] else None, to_weight if wanted[1] else None])


def _sums(bias, *gates):
    return [g.sum(0) if bias else None for g in gates]


def _lstm_cell(x, h, cell, x_bias=None, h_bias=None):
    gates = x + h if x_bias is None else x + h + x_bias + h_bias
    i, f, g, o = gates.chunk(4, 1)
    kept = torch.cat([i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()], 1)
    i, f, g, o = kept.chunk(4, 1)
    after = f * cell + i * g
    return Results([o * after.tanh(), after, kept])


def _lstm_cell_backward(to_h, to_cell, before, after, kept, bias):
    i, f, g, o = kept.chunk(4, 1)
    to_h = torch.zeros_like(after) if to_h is None else to_h
    to_after = to_h * o * (1 - after.tanh() ** 2) + (0 if to_cell is None else to_cell)
    to_gates = torch.cat([to_after * g * i * (1 - i), to_after * before * f * (1 - f), to_after * i * (1 - g ** 2),
                          to_h * after.tanh() * o * (1 - o)], 1)
    return Results([to_gates, to_after * f, *_sums(bias, to_gates)])


def _gru_cell(x, h, hidden, x_bias=None, h_bias=None):
    x, h = (x, h) if x_bias is None else (x + x_bias, h + h_bias)
    (x_r, x_z, x_n), (h_r, h_z, h_n) = x.chunk(3, 1), h.chunk(3, 1)
    r, z = (x_r + h_r).sigmoid(), (x_z + h_z).sigmoid()
    n = (x_n + r * h_n).tanh()
    return Results([n + z * (hidden - n), torch.cat([r, z, n, hidden, h_n], 1)])


def _gru_cell_backward(to_h, kept, bias):
    r, z, n, hidden, h_n = kept.chunk(5, 1)
    to_n = to_h * (1 - z) * (1 - n ** 2)
    to_r, to_z = to_n * h_n * r * (1 - r), to_h * (hidden - n) * z * (1 - z)
    to_x, to_hidden = torch.cat([to_r, to_z, to_n], 1), torch.cat([to_r, to_z, to_n * r], 1)
    return Results([to_x, to_hidden, to_h * z, *_sums(bias, to_x, to_hidden)])


def _histogram(values, bins=100, min=0, max=0):
    """Of whole numbers as well, which the host's own does not count: experts, by the tokens that chose them."""
    return Results([torch.histc(values.double(), bins, min, max).to(values.dtype)])


# The arguments that the forms below look at.
READ = frozenset(("grad_out", "grad_out_", "query", "key", "value", "attn_bias", "grad_output", "input", "self",
                  "weight", "bias", "running_mean", "running_var", "save_mean", "save_var", "input_gates",
                  "hidden_gates", "cx", "cy", "hx", "input_bias", "hidden_bias", "workspace", "grad_hy", "grad_cy",
                  "rstd"))
TABLE = {
    "aten::_fused_rms_norm_backward": _rms_norm_backward,
    "aten::_thnn_fused_lstm_cell": _lstm_cell,
    "aten::_thnn_fused_lstm_cell_backward_impl": _lstm_cell_backward,
    "aten::_thnn_fused_gru_cell": _gru_cell,
    "aten::_thnn_fused_gru_cell_backward": _gru_cell_backward,
    "aten::cudnn_batch_norm": _batch_norm,
    "aten::cudnn_batch_norm_backward": _batch_norm_backward,
    "aten::log_sigmoid_backward": _log_sigmoid_backward,
    "aten::_scaled_dot_product_efficient_attention": _efficient,
    "aten::_scaled_dot_product_efficient_attention_backward": _efficient_backward,
    "aten::_scaled_dot_product_flash_attention": _flash,
    "aten::_scaled_dot_product_flash_attention_backward": _flash_backward,
    "aten::_scaled_dot_product_cudnn_attention": _cudnn,
    "aten::_scaled_dot_product_cudnn_attention_backward": _cudnn_backward,
    "aten::histc": _histogram,
}
