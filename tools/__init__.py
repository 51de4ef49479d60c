"""Programs about the project itself: checks of its source (standard library only), vectors, the demo."""
