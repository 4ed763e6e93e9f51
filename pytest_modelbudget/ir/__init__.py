"""The one graph that every front end produces and every metric reads."""
