// Citations for parts of an answer that quote no document, by what the model attended to
// (kvblend.v1.AttributedToken).
//
// A part is a clause: the text between two punctuation marks that are followed by whitespace or the end. Its
// attention to a document is the mean over its tokens.
#pragma once

#include <string_view>
#include <vector>

#include "google/protobuf/repeated_field.h"
#include "kvblend/v1/inference.pb.h"
#include "server/cohere/citations.h"

namespace kvblend::server::cohere {

/// A clause attends so much to a document at least that is cited for it. docs/http-api.md tells how it was
/// measured.
inline constexpr double kMinCitationAttention = 0.2;

/// Citations of the clauses of `answer`, which is UTF-8, that overlap none of `copied`; in the order of the
/// answer. A clause names the document that it attends to most, and others that it attends to at least half
/// as much, if each gets `min_attention`. `tokens`: of the answer, in order, as are `copied`, none of which
/// overlaps another. Its time is that of going through each once. Pure; thread-safe.
std::vector<Citation> CiteAttended(std::string_view answer,
                                   const google::protobuf::RepeatedPtrField<v1::AttributedToken>& tokens,
                                   const std::vector<Citation>& copied,
                                   double min_attention = kMinCitationAttention);

}  // namespace kvblend::server::cohere
