"""Published tasks: their files, readers, labels and metrics; one file per benchmark or group of them."""
