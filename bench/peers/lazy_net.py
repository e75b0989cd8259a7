"""A PyTorch module whose layers carry Convoy's names and are made when the first image passes. Development only."""
import torch
from torch.nn import functional as f


class LazyNet(torch.nn.Module):
    def __init__(self, channels, extent):
        super().__init__()
        self.layers = torch.nn.ModuleDict()
        self.eval()
        with torch.no_grad():
            self(torch.zeros(2, channels, extent, extent))
        for module in self.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.reset_running_stats()  # new layers are in training mode whatever the net is in
        self.train()

    def named(self):
        return {k[len("layers."):].replace("/", "."): v for k, v in self.named_parameters()}

    def layer(self, name, make):
        key = name.replace(".", "/")
        if key not in self.layers:
            self.layers[key] = make()
        return self.layers[key]

    def conv(self, name, x, width, kernel, stride=1, dilation=1, groups=1, bias=False):
        return self.layer(name, lambda: torch.nn.Conv2d(x.shape[1], width, kernel, stride, dilation * (kernel - 1) // 2,
                                                        dilation, groups, bias))(x)

    def up(self, name, x, width, kernel=3, padding=1, output_padding=1, bias=False):
        return self.layer(name, lambda: torch.nn.ConvTranspose2d(x.shape[1], width, kernel, 2, padding, output_padding,
                                                                 bias=bias))(x)

    def up_same(self, name, x, width):
        """TensorFlow's SAME: twice the extent, the odd row and column cropped at the end."""
        return self.up(name, x, width, padding=0, output_padding=0, bias=True)[:, :, :-1, :-1]

    def norm(self, name, x, eps=1e-5):
        return self.layer(name, lambda: torch.nn.BatchNorm2d(x.shape[1], eps))(x)

    def norm_relu(self, name, x, eps=1e-5):
        return f.relu(self.norm(name, x, eps))
