#pragma once
// Tensors of any device for code of the host: what is small, or happens once, and is no operation of its own.

#include <utility>

#include "kernels/tensor.h"

namespace capstan::kernels {

/// The elements of a view to be read by the host: the view itself, or, of one on `cuda`, a copy, which is waited for.
class HostView {
 public:
  explicit HostView(const View& view) : view_(view) {
    if (!view || view.device() != Device::cuda) return;
    copy_ = on_device(view, Device::cpu);
    view_ = copy_;
  }
  const View& view() const { return view_; }
  template <class T> T* as() const { return view_.as<T>(); }

 private:
  Tensor copy_;
  View view_;
};

/// Calls body(view), whose changes the host makes: on the view itself, or, of one on `cuda`, on a copy that goes back.
template <class Body> void update_on_host(const View& view, Body&& body) {
  const HostView host(view);
  body(host.view());
  if (host.view().data() != view.data()) view.copy_from(host.view());
}

/// The device that the host fills tensors on which go to `device`: that one, or `cpu` for `cuda`.
inline Device filled_on(Device device) { return device == Device::cuda ? Device::cpu : device; }
/// The tensor on `device`; if it is there already, itself.
inline Tensor moved_to(Tensor tensor, Device device) {
  return !tensor || tensor.view().device() == device ? std::move(tensor) : on_device(tensor, device);
}

}  // namespace capstan::kernels
