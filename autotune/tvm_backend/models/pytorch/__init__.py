"""Programs that PyTorch exported (`torch.export.save`)."""
