"""What a site decides: policy, disclosure rules, journal, and its replay of the coordinator."""
