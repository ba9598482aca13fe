"""The tests of the clauses, one room a group; `nrl_interfaces.testing.data_plane` puts them together."""
