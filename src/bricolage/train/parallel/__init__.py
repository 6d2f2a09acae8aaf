"""Plans of training steps made from a spec, and run on several devices by `torch.distributed`."""
