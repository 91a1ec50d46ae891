"""What several test folders need: the cluster, the clock, players on a stage, reading PL/pgSQL. Not a place
for tests."""
