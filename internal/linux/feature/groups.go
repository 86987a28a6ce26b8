package feature

var groupFeatures = []Feature{}
