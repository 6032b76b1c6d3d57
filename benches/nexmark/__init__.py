"""Nexmark, the public benchmark of stream processors: people, the auctions that they open, and bids."""
