package service

import "net/http"

// Handler answers requests as the port does, of peers that have no connection.
func (s *Service) Handler() http.Handler { return s.guarded }
