// The factory of one instruction set's kernels at memory speed: element-wise, pooling, norm, resize, loss, optimizers.
// Included after the target pragma has ended: it takes addresses of functions, and runs on every CPU.

std::vector<KernelPtr> list;
const auto add = [&](OpKind kind, FunctionKernel::Supports supports, FunctionKernel::Prepare prepare) {
  list.push_back(std::make_unique<IsaKernel>(isa == Isa::avx512 ? "avx512" : "avx2", isa, kind, supports, prepare));
};
add(OpKind::activation, set::supports_elementwise, set::prepare_activation);
add(OpKind::activation_backward, set::supports_elementwise, set::prepare_activation_backward);
add(OpKind::max_pool, set::supports_pool, set::prepare_max_pool<false>);
add(OpKind::max_pool_backward, set::supports_pool, set::prepare_max_pool_backward<false>);
add(OpKind::activation_max_pool, set::supports_pool, set::prepare_max_pool<true>);
add(OpKind::activation_max_pool_backward, set::supports_pool, set::prepare_max_pool_backward<true>);
add(OpKind::avg_pool, set::supports_pool, set::prepare_avg_pool);
add(OpKind::avg_pool_backward, set::supports_pool, set::prepare_avg_pool_backward);
add(OpKind::dropout, set::supports_pixels, set::prepare_dropout);
add(OpKind::loss, set::supports_loss, set::prepare_loss);
add(OpKind::loss_backward, set::supports_loss, set::prepare_loss_backward);
add(OpKind::log1p, set::supports_counts, set::prepare_log1p);
add(OpKind::divide_by_mean, set::supports_counts, set::prepare_divide_by_mean);
add(OpKind::cast, set::supports_cast, set::prepare_cast);
add(OpKind::add, set::supports_elementwise, set::prepare_add);
add(OpKind::add_scaled, set::supports_elementwise, set::prepare_add_scaled);
add(OpKind::sum_squares, set::supports_dense_float, set::prepare_sum_squares);
add(OpKind::channel_sum, set::supports_pixels, set::prepare_channel_sum);
add(OpKind::scale, set::supports_elementwise, set::prepare_scale);
add(OpKind::channel_dot, set::supports_pixels, set::prepare_channel_dot);
add(OpKind::channel_scale, set::supports_pixels, set::prepare_channel_scale);
add(OpKind::channel_moments, set::supports_pixels, set::prepare_moments);
add(OpKind::batch_norm, set::supports_pixels, set::prepare_batch_norm);
add(OpKind::batch_norm_sums, set::supports_pixels, set::prepare_batch_norm_sums);
add(OpKind::batch_norm_backward_data, set::supports_pixels, set::prepare_batch_norm_backward_data);
add(OpKind::resize, set::supports_pixels, set::prepare_resize);
add(OpKind::resize_backward, set::supports_pixels, set::prepare_resize);
add(OpKind::pixel_loss, set::supports_pixel_loss, set::prepare_pixel_loss);
add(OpKind::pixel_loss_backward, set::supports_pixel_loss, set::prepare_pixel_loss_backward);
add(OpKind::arg_max, set::supports_pixels, set::prepare_arg_max);
add(OpKind::all_finite, set::supports_all_finite, set::prepare_all_finite);
add(OpKind::sgd_update, set::supports_update, set::prepare_update<set::Sgd>);
add(OpKind::adam_update, set::supports_update, set::prepare_update<set::Adam>);
add(OpKind::lamb_update, set::supports_update, set::prepare_update<set::Lamb>);
add(OpKind::accumulate, set::supports_update, set::prepare_accumulate);
add(OpKind::gradient_norm, set::supports_update, set::prepare_gradient_norm);
return list;
