"""SLO, actions, ranking, headroom: what to fix first and what it costs."""
