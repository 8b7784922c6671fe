"""What each engine knows: one package per engine, the same description for all of them."""
