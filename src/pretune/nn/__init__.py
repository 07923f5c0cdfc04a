"""BLOCKS: plain modules with plain arguments. Every linear layer sees flat tokens `[N, width]`."""
